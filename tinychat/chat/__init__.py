"""The interactive chat: its loop, commands and files."""
