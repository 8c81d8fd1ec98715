"""How models of each kind see images: their `config.json` as the parts of `models.vision`."""
