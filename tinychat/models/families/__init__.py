"""The supported architectures: one file for each family, found by its name."""
