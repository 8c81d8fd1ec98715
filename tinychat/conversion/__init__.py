"""Turns a checkpoint into a model folder: quantize, pack, write.

Numbers that are not finite or do not fit, and targets that cannot be written, raise `ConversionError`.
"""
