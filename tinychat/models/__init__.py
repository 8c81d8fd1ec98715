"""Models: their configuration, its tensors, and the folder that holds them; one file for each family."""
