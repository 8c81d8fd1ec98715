"""SentencePiece ``tokenizer.model`` files, encoded by the `sentencepiece` library.

Text gets the ids that the library gives it, for that is how the models were trained: the file says whether a
space is put before a text, also before one that begins with a space, and what is normalised. Transformers 5
differs in both. As there, a text that continues after a special token gets no space, unless ``legacy`` is set.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tinychat.errors import TextError
from tinychat.text.added_tokens import AddedToken, AddedTokenSplitter
from tinychat.text.guard import well_formed
from tinychat.text.tokenizer import Tokenizer
from tinychat.text.tokenizer_settings import TokenizerSettings, read_tokenizer_file

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

_SPACE = "\u2581"
# Those of published models have four megabytes; the library takes some ten times as much memory.
_MAX_FILE_BYTES = 48 << 20

# By protobuf's rules a second `normalizer_spec` (field 3) at the end of a serialised model is merged into the
# first. These set its `add_dummy_prefix` (field 3 there) and leave the rest.
_WITH_PREFIX = b"\x1a\x02\x18\x01"
_WITHOUT_PREFIX = b"\x1a\x02\x18\x00"


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model and the tokens that the settings add to it.

    `processor` encodes a text from its beginning; `continuing`, of the same file, encodes the continuation of a text,
    and puts no space first.
    """

    def __init__(
        self, processor: SentencePieceProcessor, continuing: SentencePieceProcessor, settings: TokenizerSettings
    ) -> None:
        self._processor = processor
        self._continuing = continuing
        self._pieces: list[str] = processor.id_to_piece(list(range(processor.get_piece_size())))
        named = self._named_tokens(settings)
        tokens = self._collect_added_tokens(settings, {*named.values()})
        super().__init__(tokens, named)
        # Models say this in practice; where one does not, Llama's default is taken.
        adds_bos = settings.add_bos_token is not False
        self.prefix_ids = [self.bos_id] if adds_bos and self.bos_id is not None else []
        self.suffix_ids = [self.eos_id] if settings.add_eos_token and self.eos_id is not None else []
        # A space before the first word comes from a prefix, or may come from one and is taken away again.
        self.strips_first_space = processor.normalize("a") != "a" or not processor.normalize(" a").startswith(_SPACE)
        self._prefix_every_stretch = settings.legacy is True
        self.vocab_size = max([len(self._pieces), *(token.id + 1 for token in tokens)])
        self._splitter = AddedTokenSplitter(tokens)

    def encode_rendered(self, text: str) -> list[int]:
        """Ids of a rendered template: special tokens count, guarded ones stay text."""
        ids: list[int] = []
        for index, part in enumerate(self._splitter.split(well_formed(text))):
            if isinstance(part, AddedToken):
                ids.append(part.id)
            else:
                begins = index == 0 or self._prefix_every_stretch
                for token_id in (self._processor if begins else self._continuing).encode(part):
                    ids += self._spell_out(token_id) if token_id in self.special_ids else [token_id]
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """UTF-8 bytes that a token adds to running text."""
        if token_id in self._added_texts:
            return self._added_texts[token_id].encode()
        piece = self.piece(token_id)
        if piece and self._processor.is_byte(token_id):
            return bytes([int(piece[3:5], 16)])
        return piece.replace(_SPACE, " ").encode()

    def piece(self, token_id: int) -> str:
        """Return one token as the vocabulary spells it."""
        if token_id in self._added_texts:
            return self._added_texts[token_id]
        return self._pieces[token_id] if 0 <= token_id < len(self._pieces) else ""

    def token_id(self, text: str) -> int | None:
        """Id of the token spelled exactly so, or None."""
        if text in self.added_tokens:
            return self.added_tokens[text]
        token_id: int = self._processor.piece_to_id(well_formed(text))
        return token_id if text and self.piece(token_id) == text else None

    def _spell_out(self, token_id: int) -> list[int]:
        """Ids of single letters: the library finds a user-defined piece also where plain text only spells it."""
        if self._processor.is_unknown(token_id):
            return [token_id]
        ids = [number for letter in self._pieces[token_id] for number in self._continuing.encode(letter)]
        return [number for number in ids if number not in self.special_ids or self._processor.is_unknown(number)]

    def _named_tokens(self, settings: TokenizerSettings) -> dict[str, str]:
        ids = {"bos_token": self._processor.bos_id(), "eos_token": self._processor.eos_id()}
        ids["unk_token"] = self._processor.unk_id()
        own = {name: self._pieces[token_id] for name, token_id in ids.items() if token_id >= 0}
        return {**own, **settings.special_tokens}

    def _collect_added_tokens(self, settings: TokenizerSettings, named: set[str]) -> list[AddedToken]:
        processor = self._processor
        tokens: dict[str, AddedToken] = {}
        for token_id, content in enumerate(self._pieces):
            if processor.is_control(token_id) or processor.is_unknown(token_id):
                tokens[content] = AddedToken(content, token_id, special=True)
        for token in settings.declared_tokens:
            tokens[token.content] = replace(token, special=token.special or token.content in named)
        for content in named - tokens.keys():
            token_id = processor.piece_to_id(content)
            if self._pieces[token_id] == content:
                tokens[content] = AddedToken(content, token_id, special=True)
        return list(tokens.values())


def load_sentencepiece(folder: Path) -> SentencePieceTokenizer:
    """Load ``tokenizer.model`` of a folder."""
    from sentencepiece import SentencePieceProcessor

    path = folder / "tokenizer.model"
    settings = TokenizerSettings.from_folder(folder)
    prefix = {None: b"", True: _WITH_PREFIX, False: _WITHOUT_PREFIX}[settings.add_prefix_space]
    model = read_tokenizer_file(path, _MAX_FILE_BYTES)
    try:
        processor = SentencePieceProcessor(model_proto=model + prefix)
        continuing = SentencePieceProcessor(model_proto=model + _WITHOUT_PREFIX)
    except (RuntimeError, UnicodeDecodeError) as error:  # the last for its own error messages
        raise TextError(f"{path}: not a SentencePiece model; fetch the file again") from error
    if processor.get_piece_size() == 0:
        raise TextError(f"{path}: holds no vocabulary; fetch the file again")
    try:
        return SentencePieceTokenizer(processor, continuing, settings)
    except UnicodeDecodeError as error:
        raise TextError(f"{path}: holds pieces that are not UTF-8; fetch the file again") from error
