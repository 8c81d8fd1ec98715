"""The model: its configuration, folder, KV cache and decoder."""
