"""Readers of other programs' formats: safetensors and PyTorch files, whole checkpoint folders."""
