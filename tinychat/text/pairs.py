"""A query and a document as one text, as a model that ranks was trained to read them."""

from __future__ import annotations

from collections.abc import Sequence

from tinychat.errors import FieldError, TextError
from tinychat.text.template import ChatTemplate
from tinychat.text.tokenizer import Tokenizer

_ROLES = ("query", "document")


class PairWriter:
    """Joins queries and documents: by tokens between them, of an encoder's tokenizer, or by a decoder's chat template.

    `name` is the model's, for errors. TextError where the model has no way to join them.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None, name: str) -> None:
        self._tokenizer, self._template, self._name = tokenizer, template, name
        if template is None and tokenizer.pair_tokens is None:
            raise TextError(f"{name} cannot rank: its tokenizer does not join two texts")
        if template is not None and not all(role in template.source for role in _ROLES):
            raise TextError(f"{name} cannot rank: its chat template has no roles {' and '.join(_ROLES)}")

    def query_ids(self, query: str) -> list[int]:
        """Return the token ids of a query alone."""
        return self._tokenizer.encode(query, add_bos=False)

    def pairs(
        self, query: str, documents: Sequence[str], instruction: str | None, most: int | None = None
    ) -> list[tuple[list[int], int]]:
        """Return the token ids of a query with each document, and at which the second kind of text begins.

        instruction : what the query asks for; FieldError where the model takes none. most : tokens of a pair, for which
        a longer document loses its end.
        """
        found = self._joined(query, documents, instruction)
        if most is None:
            return found
        return [
            pair if len(pair[0]) <= most else self._cut(query, document, instruction, len(pair[0]), most)
            for document, pair in zip(documents, found)
        ]

    def _cut(self, query: str, document: str, instruction: str | None, length: int, most: int) -> tuple[list[int], int]:
        """Return the pair of a beginning of a document, whose pair has `length` tokens; a longer one if none fits."""
        ids = self._tokenizer.encode(document, add_bos=False)
        while True:
            ids = ids[: max(0, len(ids) - (length - most))]
            (pair,) = self._joined(query, [self._tokenizer.decode(ids)], instruction)
            length = len(pair[0])
            if length <= most or not ids:
                return pair

    def _joined(self, query: str, documents: Sequence[str], instruction: str | None) -> list[tuple[list[int], int]]:
        takes_instruction = self._template is not None and "system" in self._template.source
        if instruction is not None and not takes_instruction:
            raise FieldError("instruction", f"does nothing: {self._name} takes none")
        if self._template is None:
            tokens, first = self._tokenizer.pair_tokens, self.query_ids(query)
            assert tokens is not None
            return [tokens.join(first, self._tokenizer.encode(document, add_bos=False)) for document in documents]
        asked = [] if instruction is None else [{"role": "system", "content": instruction}]
        conversations = [
            [*asked, {"role": "query", "content": query}, {"role": "document", "content": document}]
            for document in documents
        ]
        found = []
        for messages, ids in zip(conversations, self._template.render_ids_of_many(conversations)):
            # Rendered alone, it tells its error.
            whole = self._template.render_ids(messages) if ids is None else ids
            found.append((whole, len(whole)))
        return found
