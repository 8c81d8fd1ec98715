"""``POST /infill`` of llama-server: text between a prefix and a suffix, for models that were trained on it.

(Bavarian et al., 2022, https://arxiv.org/abs/2207.14255; with other files before it: https://arxiv.org/abs/2409.12186.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tinychat.errors import FieldError
from tinychat.generate.model import Model
from tinychat.serve.api_error import ApiError
from tinychat.serve.body_fields import take_list, take_text
from tinychat.serve.llama_completion import LlamaAnswer
from tinychat.serve.model_pool import ServedModel
from tinychat.serve.wire import Payload
from tinychat.text.tokenizer import Tokenizer

_PROJECT, _FILE = "myproject\n", "filename\n"
# Prefix, suffix, middle: of Qwen and CodeGemma; StarCoder; SantaCoder; Code Llama; DeepSeek; Granite.
_HOLES = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
)
# Repository and file: of Qwen; StarCoder.
_PROJECTS = (("<|repo_name|>", "<|file_sep|>"), ("<repo_name>", "<file_sep>"))


class InfillTokens(NamedTuple):
    """Ids of the tokens around a hole, and of those before other files, if there are any."""

    prefix: int
    suffix: int
    middle: int
    project: tuple[int, int] | None


def infill_tokens(tokenizer: Tokenizer) -> InfillTokens:
    """Return the tokens of a vocabulary; `ApiError` if it has none."""
    holes, projects = ([*_found(tokenizer, names)] for names in (_HOLES, _PROJECTS))
    if not holes:
        message = "this model has no tokens for a prefix and a suffix: use /completion"
        raise ApiError(501, message, "not_supported_error", code="infill_not_supported")
    prefix, suffix, middle = holes[0]
    return InfillTokens(prefix, suffix, middle, (projects[0][0], projects[0][1]) if projects else None)


def _found(tokenizer: Tokenizer, names: Iterable[tuple[str, ...]]) -> Iterator[list[int]]:
    """Yield the ids of the groups of tokens that a vocabulary has."""
    for group in names:
        ids = [token_id for name in group if (token_id := tokenizer.token_id(name)) is not None]
        if len(ids) == len(group):
            yield ids


class InfillAnswer(LlamaAnswer):
    """The completions of a hole, in llama-server's form; parameters are those of `ChatAnswer`."""

    def __init__(self, body: Payload, served: ServedModel, name: str) -> None:
        fields = dict(body)
        ids = take_hole(fields, served.model, infill_tokens(served.model.tokenizer))
        super().__init__({**fields, "prompt": ids}, served, name)


def take_hole(fields: Payload, model: Model, tokens: InfillTokens) -> list[int]:
    """Take out the texts around a hole; return the ids of the prompt. Nothing is cut."""
    texts = [take_text(fields, name) for name in ("input_prefix", "input_suffix", "prompt")]
    others = _take_others(fields)
    prefix, suffix, begun = [model.encode(text, add_bos=False) for text in texts]
    before = model.encode("")
    if others and tokens.project is not None:
        repository, separator = tokens.project
        before += [repository, *model.encode(_PROJECT, add_bos=False)]
        for name, text in others:
            before += [separator, *model.encode(f"{name}\n{text}", add_bos=False)]
        before += [separator, *model.encode(_FILE, add_bos=False)]
    else:
        for _, text in others:
            before += model.encode(text, add_bos=False)
    return [*before, tokens.prefix, *prefix, tokens.suffix, *suffix, tokens.middle, *begun]


def _take_others(fields: Payload) -> list[tuple[str, str]]:
    """Take out ``input_extra``; return the names and texts of other files."""
    found: list[tuple[str, str]] = []
    for index, one in enumerate(take_list(fields, "input_extra")):
        match one:
            case {"text": str(text), **rest} if isinstance(name := rest.get("filename", "tmp"), str):
                found.append((name, text))
            case _:
                raise FieldError(f"input_extra[{index}]", "must be an object with the texts filename and text")
    return found
