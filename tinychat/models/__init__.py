"""What a model is: its configuration, its tensors, and the folder that holds them; one file for each family."""
