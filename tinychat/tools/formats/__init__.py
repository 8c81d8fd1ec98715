"""The formats in which models write calls, and the format of a model by its chat template."""
