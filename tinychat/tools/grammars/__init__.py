"""Grammars of replies with calls, in llguidance's Lark: one function for each format of calls."""
