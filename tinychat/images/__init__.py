"""Images for models that see: pixels from files, resizing, tiles and patches."""
