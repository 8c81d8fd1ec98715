"""The commands of the command line, one file per door."""
