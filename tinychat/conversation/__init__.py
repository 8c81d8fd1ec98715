"""A conversation: its messages, their history, the files that it is saved in. No terminal is needed."""
