"""The model: its configuration, folder, KV cache, engine and sequences."""
