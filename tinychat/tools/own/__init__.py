"""Tools of our own: files of one folder, edits, commands, Python functions. None of them reaches the network."""
