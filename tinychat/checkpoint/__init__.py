"""Checkpoints of other programs, read within limits.

What is damaged raises `CheckpointError`, a tokenizer `TextError`, what is not implemented `UnsupportedModelError`.
"""
