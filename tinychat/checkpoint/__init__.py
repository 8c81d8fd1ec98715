"""Reads the formats of others: safetensors and PyTorch files, whole checkpoint folders."""
