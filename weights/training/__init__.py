"""How the bundled model was made: the text it learns from, one file per skill, its network, training and examination."""
