"""Parts of grammars of replies with calls, in llguidance's Lark, that formats of calls are made of."""
