"""Reads the formats of the world: config.json, safetensors, PyTorch files, the hub, the store."""
