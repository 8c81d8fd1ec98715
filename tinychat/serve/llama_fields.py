"""Fields of llama-server's bodies: its names and special values as ours.

https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tinychat.conversation.openai import NAMES
from tinychat.errors import FieldError
from tinychat.generate.grammar import Grammar
from tinychat.generate.model import Model
from tinychat.generate.request import Request
from tinychat.serve.body_fields import grammar_of_text, take_integer, take_request
from tinychat.setting_kinds import whole_number

MOST_PROMPTS = 256
_MOST_PROBS = 100
_MOST_RESPONSE_FIELDS = 256
_STRONGEST_BIAS = 100
_RANDOM_SEED = 0xFFFFFFFF
_WHOLE_CONTEXT = ("repeat_last_n", "dry_penalty_last_n")

OFF: Mapping[str, tuple[object, ...]] = {
    "typical_p": (1,),
    "dynatemp_range": (0,),
    "mirostat": (0,),
    "lora": ([],),
    "min_keep": (0,),
    "n_indent": (0,),
    "t_max_predict_ms": (-1, 0),
    "post_sampling_probs": (False,),
    "best_of": (1,),
    "echo": (False,),
    "min_tokens": (0,),
    "stop_token_ids": ([],),
    "skip_special_tokens": (True,),
    "add_generation_prompt": (True,),
}
"""Values that switch off what is not here; others are refused, unless the table of settings has the field."""
WITHOUT_EFFECT = frozenset(
    "dynatemp_exponent mirostat_tau mirostat_eta n_keep n_discard n_cache_reuse sse_ping_interval "
    "penalize_nl use_penalty_prompt_tokens backend_sampling".split()
)
"""Fields about what is off or done otherwise here: a prompt is never shifted, and comments come when they should."""
_SAMPLERS: Mapping[str, Mapping[str, float]] = {
    "penalties": {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
    "dry": {"dry_multiplier": 0.0},
    "top_n_sigma": {"top_n_sigma": 0.0},
    "top_k": {"top_k": 0},
    "typ_p": {"typical_p": 1.0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "xtc": {"xtc_probability": 0.0},
    "temperature": {"temperature": 1.0},
}
"""Samplers, and the settings that switch each off."""


def take_prompts(fields: dict[str, Any], model: Model) -> tuple[list[list[int]], bool]:
    """Take out ``prompt``; return the ids of each prompt, and whether there is a list of prompts.

    A text may spell control tokens, as what ``/apply-template`` returns does.
    """
    value = fields.pop("prompt", None)
    if not isinstance(value, list) or _is_mixed(value):
        return [_prompt_ids(value, "prompt", model)], False
    if not 0 < len(value) <= MOST_PROMPTS:
        raise FieldError("prompt", f"must be a text, token ids, or a list of 1 to {MOST_PROMPTS} of them")
    return [_prompt_ids(one, f"prompt[{index}]", model) for index, one in enumerate(value)], True


def _is_mixed(parts: list[object]) -> bool:
    """Return whether this is one prompt of ids and texts; texts alone are one prompt each."""
    return any(type(part) is int for part in parts) and all(type(part) in (int, str) for part in parts)


def _prompt_ids(value: object, name: str, model: Model) -> list[int]:
    if isinstance(value, dict) and isinstance(value.get("prompt_string"), str):
        if value.get("multimodal_data"):
            raise FieldError(f"{name}.multimodal_data", "is not supported: this server reads text only")
        value = value["prompt_string"]
    parts = value if isinstance(value, list) else [value]
    if not parts or not all(type(part) in (int, str) for part in parts):
        raise FieldError(name, "must be a text, or a list of token ids and texts")
    ids = model.encode("") if isinstance(parts[0], str) else []
    part: Any
    for part in parts:
        ids += model.tokenizer.encode_rendered(part) if isinstance(part, str) else [part]
    return ids


def take_llama_request(fields: dict[str, Any], defaults: Request, model: Model) -> Request:
    """Return the request of all fields that are left, over its defaults; errors are those of `take_request`."""
    logprobs = take_integer(fields, "n_probs", 0, _MOST_PROBS)
    values = _without_samplers(fields.pop("samplers", None)) | our_values(fields, model)
    return replace(take_request(values, defaults), logprobs=logprobs or None)


def our_values(fields: Mapping[str, Any], model: Model) -> dict[str, Any]:
    """Return settings for those of llama.cpp, without those that switch off what is not here.

    `FieldError` if one of them switches it on.
    """
    values: dict[str, Any] = {}
    for name, value in fields.items():
        if name in NAMES:
            values[name] = _biases(value, model) if name == "logit_bias" else _ours(name, value, model.context_size)
        elif name in OFF:
            if not any(type(value) in _like(off) and value == off for off in OFF[name]):
                raise FieldError(name, "is not supported: leave it out")
        elif name not in WITHOUT_EFFECT:
            values[name] = value
    return values


def take_most_tokens(fields: dict[str, Any]) -> int | None:
    """Take out ``n_predict`` or one of its other names: -1 is no limit, None that nothing is given."""
    names = ("n_predict", "max_completion_tokens", "max_tokens")
    given = [take_integer(fields, name, -2, 1 << 40) for name in names]
    return next((max(value, -1) for value in given if value is not None), None)


def _like(value: object) -> tuple[type, ...]:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return (int, float) if is_number else (type(value),)


def _ours(name: str, value: Any, context_size: int) -> Any:
    """Return our value of a setting for one of llama-server's: negative ones mean none, all, or off."""
    if type(value) not in (int, float) or (value >= 0 and name != "seed"):
        return value
    if name == "seed":
        return None if value in (-1, _RANDOM_SEED) else value
    if name in _WHOLE_CONTEXT:
        return context_size if value == -1 else value
    return 0 if name in ("temperature", "top_k", "min_p", "top_n_sigma", "xtc_probability") else value


def _biases(value: object, model: Model) -> object:
    """Return biases by token id: llama-server takes texts for all of their tokens, and false for never."""
    if isinstance(value, dict):
        value = [[_token_of(key), bias] for key, bias in value.items()]
    if not isinstance(value, list):
        return value
    found: dict[int, float] = {}
    for pair in value:
        is_pair = isinstance(pair, list) and len(pair) == 2 and type(pair[0]) in (int, str)
        if not is_pair or not (type(pair[1]) in (int, float) or pair[1] is False):
            raise FieldError("logit_bias", "must be pairs of a token id or text and a number, or false")
        token, bias = pair
        for token_id in model.encode(token, add_bos=False) if isinstance(token, str) else [token]:
            found[token_id] = -_STRONGEST_BIAS if bias is False else max(-_STRONGEST_BIAS, min(_STRONGEST_BIAS, bias))
    return found


def _token_of(key: str) -> int | str:
    """Return the id of a token that a key is, or the text."""
    token_id = whole_number(key)
    if token_id is None and key.isdecimal():
        raise FieldError("logit_bias", "has a token id that no model has")
    return key if token_id is None else token_id


def _without_samplers(wanted: object) -> dict[str, Any]:
    """Return the settings that switch off all samplers but these, whose order is always ours."""
    if wanted is None:
        return {}
    if not isinstance(wanted, list) or not all(isinstance(name, str) for name in wanted):
        raise FieldError("samplers", "must be a list of names")
    names = {"typ_p" if name == "typical_p" else name for name in wanted}
    if unknown := names - _SAMPLERS.keys():
        raise FieldError("samplers", f"must be some of {', '.join(_SAMPLERS)}, not {min(unknown)[:100]}")
    off = [settings for name, settings in _SAMPLERS.items() if name not in names]
    return {name: value for settings in off for name, value in settings.items() if name in NAMES}


def take_llama_grammar(fields: dict[str, Any]) -> Grammar | None:
    """Take out ``grammar`` and ``json_schema``; `SettingError` if the one that is given does not compile."""
    text, schema = fields.pop("grammar", None) or None, fields.pop("json_schema", None)
    if schema is not None:
        if text is not None:
            raise FieldError("grammar", "cannot be given beside json_schema: leave one out")
        return Grammar.from_schema(json.dumps(schema), "json_schema", is_lenient=True)
    return None if text is None else grammar_of_text(text)


def take_response_fields(fields: dict[str, Any]) -> list[str]:
    """Take out ``response_fields``: paths of what the answer is to have, such as "timings/prompt_n"."""
    value = fields.pop("response_fields", [])
    is_list = isinstance(value, list) and all(isinstance(path, str) for path in value)
    if not is_list or len(value) > _MOST_RESPONSE_FIELDS:
        raise FieldError("response_fields", f"must be a list of at most {_MOST_RESPONSE_FIELDS} names")
    return list(value)


def take_slot(fields: dict[str, Any]) -> int | None:
    """Take out ``id_slot``; None where any will do."""
    number = take_integer(fields, "id_slot", -1, 1 << 31)
    return None if number == -1 else number


def chosen(answer: dict[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """Return the values of an answer at these paths, each under the path as its name; without paths all of it."""
    found: dict[str, Any] = {}
    for path in paths:
        value: Any = answer
        for name in path.split("/"):
            value = value.get(name, _MISSING) if isinstance(value, dict) else _MISSING
        if value is not _MISSING:
            found[path] = value
    return found if paths else answer


_MISSING = object()


def setting_fields(request: Request, context_size: int) -> dict[str, Any]:
    """Return settings of a request under llama-server's names: ``generation_settings`` and ``params``."""
    tokens = -1 if request.max_tokens is None else request.max_tokens
    own = {name: getattr(request, name) for name in dict.fromkeys(NAMES.values())}
    seed = _RANDOM_SEED if request.seed is None else request.seed
    return own | {
        "n_ctx": context_size,
        "n_predict": tokens,
        "max_tokens": tokens,
        "seed": seed,
        "stop": list(request.stop),
        "dry_sequence_breakers": list(request.dry_sequence_breakers),
        "ignore_eos": request.ignore_eos,
        "n_probs": request.logprobs or 0,
        "samplers": [*_SAMPLERS],
    }
