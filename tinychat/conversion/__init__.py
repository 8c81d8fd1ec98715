"""Turns a checkpoint into a model folder: quantize, pack, write."""
