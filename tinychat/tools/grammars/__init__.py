"""Grammars of replies with calls, one file for each family of formats."""
