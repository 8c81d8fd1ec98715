"""Mutated files for every reader of tinychat: what `scripts/fuzz` is made of."""
