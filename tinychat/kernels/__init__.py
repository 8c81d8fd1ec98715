"""The compiled operations of the decoder, one per file."""
