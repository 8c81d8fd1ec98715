"""Sources of models: the local store, other programs, the hub; and the names of models."""
