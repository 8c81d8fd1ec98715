"""``tokenizer.json`` files, encoded by the `tokenizers` library, with transformers' amendments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import count, takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from tinychat.errors import TextError
from tinychat.text.added_tokens import AddedToken, AddedTokenSplitter
from tinychat.text.guard import GUARD_END, GUARD_START, well_formed
from tinychat.text.tiktoken_file import tokenizer_json
from tinychat.text.token_spelling import TokenSpelling
from tinychat.text.tokenizer import PairTokens, Tokenizer
from tinychat.text.tokenizer_settings import TokenizerSettings
from tinychat.text.tokenizers_library import (
    MAX_TOKEN_ID,
    encode,
    encode_many,
    library_calls,
    open_tokenizer,
    parse_tokenizer,
    state_of,
    steps_of,
)

if TYPE_CHECKING:
    import tokenizers

# Most tokens come again soon.
_RECENT = 4096
_SPACE = "\u2581"

# Replaces an added token while its surroundings are encoded; no guarded text has it.
_PLACEHOLDER = "\ufdd2tinychat added token\ufdd3"

# Model types for which transformers 5 leaves the pipeline of the file alone.
_WITH_FILE_PIPELINE = frozenset({"mistral", "mistral3", "mixtral", "ministral", "ministral3"})


class HuggingFaceTokenizer(Tokenizer):
    """The tokenizer of a ``tokenizer.json``, the file `source`; `prefix` is put before a text.

    The named tokens of `backend` are special already. No prefix stands before an added token.
    """

    def __init__(
        self, backend: tokenizers.Tokenizer, special_tokens: dict[str, str], source: str, prefix: str = ""
    ) -> None:
        self._tokens = [
            AddedToken(token.content, token_id, token.special, token.lstrip, token.rstrip)
            for token_id, token in backend.get_added_tokens_decoder().items()
        ]
        super().__init__(self._tokens, special_tokens)
        self._backend = backend
        self._prefix = prefix
        self._source = source
        self._spelling = TokenSpelling.from_decoder(state_of(backend.decoder), source)
        self._recent_bytes = lru_cache(_RECENT)(self._spelled_bytes)
        self.prefix_ids, self.suffix_ids = _ids_around(backend, source)
        self.pair_tokens = _tokens_of_pairs(backend, source)
        self.vocab_size = backend.get_vocab_size(with_added_tokens=True)
        self.strips_first_space = self._spelling.strips_first_space

    def encode_rendered(self, text: str) -> list[int]:
        """Ids of a rendered template: special tokens count, guarded ones stay text."""
        text = well_formed(text)
        if GUARD_START in text or GUARD_END in text:
            return self._encode_guarded(text)
        return encode(self._backend, self._with_prefix(text), self._source)

    def encode_many(self, texts: Sequence[str | None]) -> list[list[int] | None]:
        """Ids of texts: the library gets all at once, but those with marks."""
        formed = [None if text is None else well_formed(text) for text in texts]
        plain = [text is not None and GUARD_START not in text and GUARD_END not in text for text in formed]
        together = [self._with_prefix(text or "") for text, is_plain in zip(formed, plain) if is_plain]
        try:
            found: Iterator[list[int] | None] = iter(encode_many(self._backend, together, self._source))
        except TextError:
            return super().encode_many(texts)
        others = iter(super().encode_many([text for text, is_plain in zip(texts, plain) if not is_plain]))
        return [next(found if is_plain else others) for is_plain in plain]

    def _with_prefix(self, text: str) -> str:
        begins = text and not text.startswith(tuple(self.added_tokens))
        return self._prefix + text if self._prefix and begins else text

    def token_bytes(self, token_id: int) -> bytes:
        """UTF-8 bytes that a token adds to running text."""
        return self._recent_bytes(token_id)

    def _spelled_bytes(self, token_id: int) -> bytes:
        if token_id in self._added_texts:
            return self._added_texts[token_id].encode()
        return self._spelling.token_bytes(self.piece(token_id))

    def piece(self, token_id: int) -> str:
        """Return one token as the vocabulary spells it."""
        known = 0 <= token_id < MAX_TOKEN_ID
        return (self._backend.id_to_token(token_id) if known else None) or ""

    def token_id(self, text: str) -> int | None:
        """Id of the token spelled exactly so, or None."""
        token_id: int | None = self._backend.token_to_id(well_formed(text))
        return token_id

    def _encode_guarded(self, text: str) -> list[int]:
        """Encode with every unguarded added token as a placeholder, so that no other can match."""
        parts = self._splitter.split(text.replace(_PLACEHOLDER, "\ufffd"))
        if parts and isinstance(parts[0], str):
            parts[0] = self._prefix + parts[0]
        tokens = iter([part for part in parts if isinstance(part, AddedToken)])
        plain = "".join(_PLACEHOLDER if isinstance(part, AddedToken) else part for part in parts)
        plain_ids = encode(self._plain_backend, plain, self._source)
        placeholder_id = self._plain_backend.token_to_id(_PLACEHOLDER)
        ids: list[int] = []
        for token_id in plain_ids:
            if token_id == placeholder_id:
                token = next(tokens, None)
                if token is None:
                    raise TextError(f"{self._source} makes special tokens of plain text; download it again")
                ids.append(token.id)
            elif token_id in self._added_texts and token_id in self.special_ids:
                ids += self._spell_out(self._added_texts[token_id])
            else:
                ids.append(token_id)
        return ids

    @cached_property
    def _splitter(self) -> AddedTokenSplitter:
        return AddedTokenSplitter(self._tokens)

    @cached_property
    def _plain_backend(self) -> tokenizers.Tokenizer:
        """The same model and pipeline, without the added tokens but with the placeholder; made when first needed."""
        from tokenizers import AddedToken as BackendToken
        from tokenizers import Tokenizer as Backend

        with library_calls(self._source):
            # The model is shared: a copy would read the whole vocabulary again.
            plain = Backend(self._backend.model)
            plain.normalizer, plain.pre_tokenizer = self._backend.normalizer, self._backend.pre_tokenizer
            # The library numbers added tokens from the size of the vocabulary on, whatever has these numbers already
            # where others are left out.
            ids = count(plain.get_vocab_size())
            taken = [f"\ufdd2{i}\ufdd3" for i in takewhile(lambda i: plain.model.id_to_token(i) is not None, ids)]
            plain.add_tokens([BackendToken(token, normalized=False) for token in [*taken, _PLACEHOLDER]])
        return plain

    def _spell_out(self, content: str) -> list[int]:
        """Ids of single letters: some vocabularies join them to the very token that must not appear."""
        letters = self._spelling.letters(content)
        with library_calls(self._source):
            return [token.id for letter in letters for token in self._backend.model.tokenize(letter)]


def load_huggingface(folder: Path) -> HuggingFaceTokenizer:
    """Load ``tokenizer.json`` of a folder; a damaged or hostile file is a TextError."""
    path, settings = folder / "tokenizer.json", TokenizerSettings.from_folder(folder)
    return _with_settings(open_tokenizer(path, settings.written_ids), settings, str(path))


def load_tiktoken(path: Path) -> HuggingFaceTokenizer:
    """Load a tiktoken file as the ``tokenizer.json`` that a conversion makes of it; errors as `tokenizer_json`."""
    settings = TokenizerSettings.from_folder(path.parent)
    return _with_settings(parse_tokenizer(tokenizer_json(path), str(path)), settings, str(path))


def _with_settings(backend: tokenizers.Tokenizer, settings: TokenizerSettings, source: str) -> HuggingFaceTokenizer:
    from tokenizers import AddedToken as BackendToken

    with library_calls(source):
        prefix = _rebuild_llama_pipeline(backend, settings)
        special_tokens = _special_tokens(backend, settings)
        known = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
        named = [content for content in special_tokens.values() if content not in known]
        backend.add_special_tokens([BackendToken(content, normalized=False) for content in named])
        return HuggingFaceTokenizer(backend, special_tokens, source, prefix)


def _special_tokens(backend: tokenizers.Tokenizer, settings: TokenizerSettings) -> dict[str, str]:
    """Named tokens that exist: from the settings, else the ids of config.json."""
    ids = {"bos_token": settings.bos_token_id, "eos_token": settings.eos_token_id}
    from_ids = {
        name: backend.id_to_token(token_id)
        for name, token_id in ids.items()
        if token_id is not None and token_id < MAX_TOKEN_ID
    }
    named = {**from_ids, **settings.special_tokens}
    return {name: text for name, text in named.items() if text and backend.token_to_id(text) is not None}


def _rebuild_llama_pipeline(backend: tokenizers.Tokenizer, settings: TokenizerSettings) -> str:
    """Split text as transformers 5 does for Llama's tokenizer classes, whatever the file says; return the prefix.

    That uses vocabulary and merges only; the difference shows after special tokens: no space is put there unless
    ``legacy`` is set. Unlike there, a text that begins with a space gets another one where the file has a Prepend
    normalizer, as from SentencePiece, with which the models were trained. The prefix of a text is empty where the
    pipeline puts it.
    """
    from tokenizers import decoders, normalizers, pre_tokenizers

    classes = {"LlamaTokenizer": settings.legacy is True, "CodeLlamaTokenizer": False}
    if settings.tokenizer_class not in classes or settings.model_type in _WITH_FILE_PIPELINE:
        return ""
    kinds = {step["type"] for step in steps_of(state_of(backend.decoder), "decoders")}
    if type(backend.model).__name__ != "BPE" or "ByteLevel" in kinds:
        return ""
    prefixed = settings.add_prefix_space is not False
    every_stretch = classes[settings.tokenizer_class]
    always = any(step["type"] == "Prepend" for step in steps_of(state_of(backend.normalizer), "normalizers"))
    scheme = "never" if always or not prefixed else "always" if every_stretch else "first"
    backend.normalizer = normalizers.Prepend(_SPACE) if prefixed and always and every_stretch else None
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme=scheme, split=False)
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(content=" ", left=1)] if prefixed else steps)
    return " " if prefixed and always and not every_stretch else ""


def _ids_around(backend: tokenizers.Tokenizer, source: str) -> tuple[list[int], list[int]]:
    """Ids that the post-processor puts before a text, and after it: the latter do not belong in a prompt."""
    content = encode(backend, "a", source)
    whole = encode(backend, "a", source, special=True)
    for start in range(len(whole) - len(content) + 1):
        if whole[start : start + len(content)] == content:
            return list(whole[:start]), list(whole[start + len(content) :])
    return [], []


def _tokens_of_pairs(backend: tokenizers.Tokenizer, source: str) -> PairTokens | None:
    """Return the tokens that the post-processor puts around two texts; None where none stands between them."""
    with library_calls(source):
        whole = backend.encode("a", "b")
    texts = whole.sequence_ids
    if 0 not in texts or 1 not in texts:
        return None
    first, second = ([i for i, text in enumerate(texts) if text == number] for number in (0, 1))
    between = whole.ids[first[-1] + 1 : second[0]]
    if not between or len(first) != first[-1] - first[0] + 1 or len(second) != second[-1] - second[0] + 1:
        return None
    kinds = whole.type_ids[first[0]] != whole.type_ids[second[0]]
    return PairTokens(list(whole.ids[: first[0]]), list(between), list(whole.ids[second[-1] + 1 :]), kinds)
