"""The interactive conversation: session, loop, commands, rendering."""
