"""How the bundled model was made: the text that it learned from, its tokenizer, its network and its training."""
