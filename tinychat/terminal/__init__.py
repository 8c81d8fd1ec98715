"""Input and output at a terminal: line editing, rendering of Markdown, the clipboard."""
