"""``POST /infill`` of llama-server: text between a prefix and a suffix, for models that were trained on it.

(Bavarian et al., 2022, https://arxiv.org/abs/2207.14255; with other files before it: https://arxiv.org/abs/2409.12186.)
"""

from __future__ import annotations

from typing import NamedTuple

from tinychat.errors import FieldError
from tinychat.generate.model import Model
from tinychat.serve.answering import Payload
from tinychat.serve.api_error import ApiError
from tinychat.serve.llama_completion import LlamaAnswer
from tinychat.serve.model_pool import ServedModel
from tinychat.text.tokenizer import Tokenizer

_PROJECT, _FILE = "myproject\n", "filename\n"
# Of Qwen, CodeGemma and Granite; StarCoder; SantaCoder; Code Llama; DeepSeek; Codestral has no third token.
_PREFIX = ("<|fim_prefix|>", "<fim_prefix>", "<fim-prefix>", "▁<PRE>", "<PRE>", "<｜fim▁begin｜>", "<|code_prefix|>")
_SUFFIX = ("<|fim_suffix|>", "<fim_suffix>", "<fim-suffix>", "▁<SUF>", "<SUF>", "<｜fim▁hole｜>", "<|code_suffix|>")
_MIDDLE = ("<|fim_middle|>", "<fim_middle>", "<fim-middle>", "▁<MID>", "<MID>", "<｜fim▁end｜>", "<|code_middle|>")
_REPOSITORY = ("<|repo_name|>", "<repo_name>", "<reponame>", "<|fim_repo|>")
_FILE_BEGIN = ("<|file_sep|>", "<file_sep>", "<|file_separator|>")


class InfillTokens(NamedTuple):
    """Ids of the tokens for a text with a hole; the last two may be missing."""

    prefix: int
    suffix: int
    middle: int
    repository: int | None
    file: int | None


def infill_tokens(tokenizer: Tokenizer) -> InfillTokens:
    """Return the tokens of a vocabulary.

    Raises
    ------
    ApiError
        If it has none.
    """
    found = [
        next((tokenizer.added_tokens[name] for name in names if name in tokenizer.added_tokens), None)
        for names in (_PREFIX, _SUFFIX, _MIDDLE, _REPOSITORY, _FILE_BEGIN)
    ]
    prefix, suffix, middle, repository, file = found
    if prefix is None or suffix is None or middle is None:
        message = "this model has no tokens for a prefix and a suffix: use /completion"
        raise ApiError(501, message, "not_supported_error", code="infill_not_supported")
    return InfillTokens(prefix, suffix, middle, repository, file)


class InfillAnswer(LlamaAnswer):
    """The completions of a hole, in llama-server's form; parameters are those of `ChatAnswer`."""

    def __init__(self, body: Payload, served: ServedModel, name: str) -> None:
        fields = dict(body)
        ids = _take_hole(fields, served.model, infill_tokens(served.model.tokenizer))
        super().__init__({**fields, "prompt": ids}, served, name)


def _take_hole(fields: Payload, model: Model, tokens: InfillTokens) -> list[int]:
    """Take out the texts around a hole; return the ids of the prompt. Nothing is cut."""
    texts = [fields.pop(name, "") for name in ("input_prefix", "input_suffix", "prompt")]
    for name, text in zip(("input_prefix", "input_suffix", "prompt"), texts):
        if not isinstance(text, str):
            raise FieldError(name, "must be a text")
    others = _take_others(fields)
    prefix, suffix, begun = [model.encode(text, add_bos=False) for text in texts]
    before = model.encode("")
    if others and tokens.repository is not None and tokens.file is not None:
        before += [tokens.repository, *model.encode(_PROJECT, add_bos=False)]
        for file, text in others:
            before += [tokens.file, *model.encode(f"{file}\n{text}", add_bos=False)]
        before += [tokens.file, *model.encode(_FILE, add_bos=False)]
    else:
        for _, text in others:
            before += model.encode(text, add_bos=False)
    return [*before, tokens.prefix, *prefix, tokens.suffix, *suffix, tokens.middle, *begun]


def _take_others(fields: Payload) -> list[tuple[str, str]]:
    """Take out ``input_extra``; return the names and texts of other files."""
    extra = fields.pop("input_extra", [])
    if not isinstance(extra, list):
        raise FieldError("input_extra", "must be a list")
    found = []
    for index, one in enumerate(extra):
        pair = (one.get("filename", "tmp"), one.get("text")) if isinstance(one, dict) else (None, None)
        if not all(isinstance(text, str) for text in pair):
            raise FieldError(f"input_extra[{index}]", "must be an object with the texts filename and text")
        found.append(pair)
    return found
