"""How much of a text is recited: its longest stretch that the corpus contains."""

from itertools import islice

from .conversations import corpus

CONVERSATIONS = 70_000


class Corpus:
    """The replies of the corpus's first conversations, as one text.

    Parameters
    ----------
    conversations : int
        How many of them; the default is about what one training run reads.
    """

    def __init__(self, conversations: int = CONVERSATIONS, seed: int = 1) -> None:
        chats = islice(corpus(seed), conversations)
        self._lines = {message["content"] for chat in chats for message in chat if message["role"] == "assistant"}
        self._text = "\n".join(sorted(self._lines))

    def has_line(self, text: str) -> bool:
        """Return whether the text is a whole reply of the corpus."""
        return text in self._lines

    def longest_common(self, text: str) -> str:
        """Return the longest part of `text` that is part of a reply of the corpus."""
        best = ""
        start = 0
        while start + len(best) < len(text):
            # Grown while it is found: every start is tried with one character more than the best so far.
            length = len(best) + 1
            if text[start : start + length] in self._text:
                best = text[start : start + length]
            else:
                start += 1
        return best
