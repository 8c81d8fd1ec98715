"""A model without weights: every byte is a token, and a script says what comes next."""

import re
import signal
from copy import copy
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar, NamedTuple

import numpy as np

from tinychat.engine.context import check_context
from tinychat.engine.share import ProcessorShare
from tinychat.errors import FieldError, SettingError, TextError
from tinychat.generate.model import Model
from tinychat.text.parts import refuse_images
from tinychat.tools.formats.known import HERMES

BOS, EOS, SYSTEM, USER, ASSISTANT = range(256, 261)
VOCAB_SIZE = 261
_NAMES = {BOS: "<bos>", EOS: "<eos>", SYSTEM: "<system>", USER: "<user>", ASSISTANT: "<assistant>"}


class ByteTokenizer:
    """One token per byte of UTF-8, and five special ones."""

    vocab_size = VOCAB_SIZE
    bos_token, eos_token, bos_id, eos_id = "<bos>", "<eos>", BOS, EOS
    special_ids = frozenset(_NAMES)
    special_tokens: ClassVar = {"bos_token": "<bos>", "eos_token": "<eos>"}
    added_tokens: ClassVar = {name: token_id for token_id, name in _NAMES.items()}
    adds_bos = True
    suffix_ids: ClassVar = []
    strips_first_space = False
    thought_marks = None

    def encode(self, text, add_bos=True):
        return [BOS] * add_bos + list(text.encode())

    def encode_reply(self, text):
        return self.encode(text, add_bos=False)

    def encode_rendered(self, text):
        parts = re.split("(<bos>|<eos>|<system>|<user>|<assistant>)", text)
        ids = ([self.added_tokens[part]] if part in self.added_tokens else list(part.encode()) for part in parts)
        return [token_id for some in ids for token_id in some]

    def decode(self, ids, skip_special=True):
        parts, plain = [], bytearray()
        for token_id in ids:
            if token_id < 256:
                plain.append(token_id)
            elif not skip_special:
                parts.append(plain.decode(errors="replace") + _NAMES[token_id])
                plain = bytearray()
        return "".join([*parts, plain.decode(errors="replace")])

    def token_bytes(self, token_id):
        return bytes([token_id]) if token_id < 256 else _NAMES[token_id].encode()

    def piece(self, token_id):
        return _NAMES.get(token_id) or chr(token_id)

    def token_id(self, text):
        return next((token_id for token_id, name in _NAMES.items() if name == text), None)


class Letters(ByteTokenizer):
    """Has a letter for each id."""

    def token_bytes(self, token_id):
        return bytes([65 + token_id % 26])


class MarkerTemplate:
    """Puts one special token before each message."""

    opens_thinking = names_thoughts = False
    source = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"

    def __init__(self, is_fallback=False, thinking_switch=None):
        self.is_fallback = is_fallback
        self.thinking_switch = thinking_switch
        self.stop_strings = ("\nUser:",) if is_fallback else ()

    def guarded(self, text):
        return text

    guarded_reply = guarded

    def thinking_variables(self, thinking):
        return {} if thinking is None or self.thinking_switch is None else {self.thinking_switch: thinking}

    def opens_thinking_with(self, **_variables):
        return False

    def render(self, messages, add_generation_prompt=True, **variables):
        ids = self.render_ids(messages, add_generation_prompt, **variables)
        return ByteTokenizer().decode(ids, skip_special=False)

    def render_ids(self, messages, add_generation_prompt=True, **variables):
        marks = {"system": SYSTEM, "developer": SYSTEM, "tool": SYSTEM, "user": USER, "assistant": ASSISTANT}
        tools = "".join(tool["function"]["name"] for tool in variables.get("tools") or ())
        ids = [BOS, *f"[{tools}]".encode()] if tools else [BOS]
        for message in messages:
            content = message["content"]
            if isinstance(content, list):
                content = "".join(part["text"] if "text" in part else f"({part['image'].name})" for part in content)
            called = "".join(call["function"]["name"] for call in message.get("tool_calls", []))
            ids += [marks[message["role"]], *f"{content}{called}".encode()]
            ids += [EOS] * (message["role"] == "assistant")
        closed = b"<think>\n\n</think>\n\n" if variables.get(self.thinking_switch) is False else b""
        return [*ids, *[ASSISTANT] * add_generation_prompt, *closed * add_generation_prompt]


class MarkedTools:
    """The template itself, which writes calls and results in its own way; the model writes those of Hermes."""

    form = HERMES

    def __init__(self, model):
        self._model = model

    def render(self, messages, add_generation_prompt=True, **variables):
        return self._model.template.render(messages, add_generation_prompt, **variables)

    def render_ids(self, messages, add_generation_prompt=True, **variables):
        if not self._model.sees_images:
            refuse_images(messages)
        return self._model.template.render_ids(messages, add_generation_prompt, **variables)

    def render_ids_of_many(self, conversations, **variables):
        return [self._ids_or_none(messages, **variables) for messages in conversations]

    def _ids_or_none(self, messages, **variables):
        try:
            return self.render_ids(messages, **variables)
        except (FieldError, TextError):
            return None

    def marker_ids(self, tokenizer):
        return frozenset()


class FakeSequence:
    """Puts all probability on the id that `next_id` returns for all ids so far; None favours none.

    `trained_length` is what its engine says of the model.

    `before_step` is called with the number of steps so far; `steps` records the ids of each step,
    `drops` what was taken out.
    """

    def __init__(self, next_id, context_size=256, chunk_size=8, before_step=lambda count: None, trained_length=1 << 20):
        self.trained_length = trained_length
        self.vocab_size = VOCAB_SIZE
        self.context_size = context_size
        self.chunk_size = chunk_size
        self.ids = []
        self.steps = []
        self.drops = []
        self.recalled = []
        self._next_id = next_id
        self._before_step = before_step

    def reusable_prefix(self, ids):
        pairs = zip(ids, self.ids, strict=False)
        return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(ids), len(self.ids)))

    threads = 2
    share = ProcessorShare()
    cache_bytes, state_bytes = 1_250_000, 0

    @property
    def engine(self):
        return FakeEngine(self)

    def insert_prefix(self):
        pass

    def release(self):
        self.ids = []

    evict = release

    kv = "bf16"
    saved_bytes = 1000

    def on_changed_engine(self, *, kv="", threads=0, progress):
        """Take as long as a type of cache that has to be compiled; there are two cores."""
        if kv:
            progress(0, 2)
            progress(1, 2)
        other = copy(self)
        other.kv, other.threads, other.ids = kv or self.kv, min(threads or self.threads, 2), self.ids.copy()
        return other

    def save(self, path):
        path.write_text(f"{self.ids}")
        return True

    def load(self, path):
        self.recalled.append(path.name)
        return len(self.ids) if path.exists() else 0

    def chunk(self, ids, sequence_length, outputs=1, second=None):
        return FakeChunk(self, ids, sequence_length, outputs)

    def reuse(self, ids):
        self.rewind(min(self.reusable_prefix(ids), len(ids) - 1))
        return len(self.ids)

    def rows_at_once(self, most):
        return min(most, self.context_size - len(self.ids), self.chunk_size)

    def another(self):
        next_id = getattr(self._next_id, "another", lambda: self._next_id)()
        other = FakeSequence(next_id, self.context_size, self.chunk_size, self._before_step)
        other.steps = self.steps
        return other

    has_state = False

    def cut(self, length):
        self.rewind(length)

    def rewind(self, length):
        assert 0 <= length <= len(self.ids)
        del self.ids[length:]

    def drop(self, start, stop):
        assert 0 <= start < stop <= len(self.ids)
        self.drops.append((start, stop))
        del self.ids[start:stop]

    def resize(self, context_size):
        check_context(context_size)
        if context_size < len(self.ids):
            raise SettingError(f"context {context_size} is less than the {len(self.ids)} tokens in use")
        self.context_size = context_size

    def step_ids(self, ids, first=0, count=None):
        size = count or self.chunk_size
        return (ids[start : start + size] for start in range(first, len(ids), size))

    def step(self, ids, sequence_length=None, *, outputs=1, out=None):
        assert sequence_length is None or sequence_length >= len(self.ids) + len(ids)
        assert 1 <= len(ids) <= self.chunk_size
        assert len(self.ids) + len(ids) <= self.context_size
        self._before_step(len(self.steps))
        self.steps.append(list(ids))
        self.ids.extend(ids)
        ends = range(len(self.ids) - outputs + 1, len(self.ids) + 1)
        return np.stack([self._row(self.ids[:end]) for end in ends], out=None if out is None else out[:outputs])

    def new_logits(self, rows):
        return np.empty((rows, self.vocab_size), np.float32)

    def _row(self, ids):
        favourite = self._next_id(ids)
        if favourite is None:
            return np.zeros(self.vocab_size, dtype=np.float32)
        row = np.full(self.vocab_size, -100.0, dtype=np.float32)
        row[favourite] = 10.0
        return row


class FakeChunk(NamedTuple):
    """A chunk of a `FakeSequence`, for `FakeEngine.run`."""

    sequence: FakeSequence
    ids: list
    sequence_length: int
    outputs: int


class FakeEngine:
    """Runs sequences like `first` one after the other."""

    config = SimpleNamespace(rope_scaling=None, hidden_size=VOCAB_SIZE, vector_size=VOCAB_SIZE, bidirectional=False)
    projection = None
    images = None

    def __init__(self, first):
        self.vocab_size, self.chunk_size, self.most_rows = first.vocab_size, first.chunk_size, first.chunk_size
        self.trained_length, self.threads = first.trained_length, first.threads
        self.share, self._first = first.share, first

    def take_share(self, percent):
        self._first.share = ProcessorShare(percent)

    def new_logits(self, rows):
        return np.empty((rows, self.vocab_size), np.float32)

    def rest(self):
        pass

    def run(self, chunks, out=None):
        rows = [
            chunk.sequence.step(chunk.ids, chunk.sequence_length, outputs=max(chunk.outputs, 1)) for chunk in chunks
        ]
        return [found[len(found) - chunk.outputs :] for found, chunk in zip(rows, chunks)]

    def hidden_states(self, chunks):
        """Return for each id a vector of its own."""
        self.run(chunks)
        return [np.eye(self.vocab_size)[chunk.ids] for chunk in chunks]


class Continuation:
    """Continues each prompt text (of the table) with its text, then ends."""

    def __init__(self, table):
        self._table = table

    def __call__(self, ids):
        text = bytes(token_id for token_id in ids if token_id < 256)
        for prompt, reply in self._table.items():
            whole = (prompt + reply).encode()
            if text.startswith(prompt.encode()) and whole.startswith(text):
                return whole[len(text)] if len(text) < len(whole) else EOS
        return EOS


def interrupt_at(step):
    """Return a `before_step` that presses Ctrl-C before the step of this number."""

    def interrupt(count):
        if count == step:
            signal.raise_signal(signal.SIGINT)

    return interrupt


class Replies:
    """Gives the replies one after the other, each time the model is asked to speak."""

    def __init__(self, *replies):
        self._left = [reply.encode() for reply in replies]
        self._reply = b""

    def another(self):
        """Return what speaks beside this one: it takes the next reply when it is asked."""
        other = Replies()
        other._left = self._left
        return other

    def __call__(self, ids):
        spoken = ids[::-1].index(ASSISTANT) if ASSISTANT in ids else None
        if spoken is None:
            return EOS
        if spoken == 0:
            self._reply = self._left.pop(0)
        return self._reply[spoken] if spoken < len(self._reply) else EOS


class SeeingModel(Model):
    """Reads of an image its name, in parentheses."""

    sees_images = True

    def render_ids(self, messages, add_generation_prompt=True, **variables):
        return self.tool_template.render_ids(messages, add_generation_prompt, **variables)


def fake_model(next_id, *, name="fake", has_template=True, sees_images=False, **sequence):
    """Return a Model whose replies `next_id` decides, and which `sees_images` or not."""
    model = (SeeingModel if sees_images else Model)(
        sequence=FakeSequence(next_id, **sequence),
        tokenizer=ByteTokenizer(),
        template=MarkerTemplate(is_fallback=not has_template),
        stop_ids=frozenset({EOS}),
        path=Path(name),
    )
    model.tool_template = MarkedTools(model)
    return model
