"""What the user types and sees: line editing and keys, drawing, markdown, the clipboard."""
