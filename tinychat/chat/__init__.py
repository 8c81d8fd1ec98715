"""The interactive conversation: its messages, overflow, saved files, loop and commands."""
