"""The lines of a batch file: what each one asks for, or why it asks for nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from tinychat.commands.options import ReplyOptions
from tinychat.errors import SettingError
from tinychat.generate.settings import SamplingOptions, SamplingSettings
from tinychat.generate.stopping import StopConditions

_NUMBERS = ("temperature", "top_p", "min_p", "repeat_penalty")
_INTEGERS = ("top_k", "repeat_last_n", "seed", "max_tokens")
_KEYS = ("id", "prompt", "messages", "stop", *_NUMBERS, *_INTEGERS)


@dataclass(frozen=True)
class Job:
    """One line.

    Attributes
    ----------
    id : str or int
        The line's own, or else its number, counted from 1.
    prompt : str or list of dict
        A text, or messages with `role` and `content`.
    reply : ReplyOptions
        The command line's, and what this line says otherwise.
    error : str, optional
        Why the line cannot be answered; the other fields then mean nothing.
    """

    id: str | int
    prompt: str | list[dict[str, str]]
    reply: ReplyOptions
    error: str | None = None


def read_jobs(data: bytes, reply: ReplyOptions) -> list[Job]:
    """Return the jobs of a file's lines; empty lines are none.

    Parameters
    ----------
    data : bytes
        JSON objects in UTF-8, one to a line.
    reply : ReplyOptions
        What holds where a line says nothing.
    """
    lines = enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1)
    return [_job(number, line, reply) for number, line in lines if line.strip()]


def _job(number: int, line: bytes, reply: ReplyOptions) -> Job:
    name: str | int = number
    try:
        fields = _object(line)
        name = _id(fields.get("id"), number)
        return Job(name, _prompt(fields), _overridden(reply, fields))
    except SettingError as error:
        return Job(name, "", reply, error=str(error))


def _object(line: bytes) -> dict[str, Any]:
    """Return the line's keys and values, without those that are null."""
    try:
        fields = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise SettingError(f"the line is no JSON in UTF-8: {error}") from None
    if not isinstance(fields, dict):
        raise SettingError('the line is no JSON object: write {"prompt": "..."} or {"messages": [...]}')
    return {key: value for key, value in fields.items() if value is not None}


def _id(value: object, number: int) -> str | int:
    if value is None:
        return number
    if isinstance(value, str) or _is_integer(value):
        return cast("str | int", value)
    raise SettingError('"id" must be a text or an integer')


def _prompt(fields: Mapping[str, Any]) -> str | list[dict[str, str]]:
    unknown = sorted(fields.keys() - set(_KEYS))
    if unknown:
        raise SettingError(f"the key {unknown[0]!r} is not known; known are {', '.join(_KEYS)}")
    if ("prompt" in fields) == ("messages" in fields):
        raise SettingError('the line must have either "prompt" or "messages"')
    if "messages" in fields:
        return _messages(fields["messages"])
    if not isinstance(fields["prompt"], str):
        raise SettingError('"prompt" must be a text')
    return fields["prompt"]


def _messages(value: object) -> list[dict[str, str]]:
    if not isinstance(value, list) or not value or not all(map(_is_message, value)):
        raise SettingError('"messages" must be a list of {"role": "...", "content": "..."}, at least one')
    return value


def _is_message(value: object) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {"role", "content"}
        and all(isinstance(text, str) for text in value.values())
    )


def _overridden(reply: ReplyOptions, fields: Mapping[str, Any]) -> ReplyOptions:
    given = dict(_checked_numbers(fields))
    stop = _stop(fields["stop"]) if "stop" in fields else reply.stop
    max_tokens = given.pop("max_tokens", reply.max_tokens)
    sampling = cast(SamplingOptions, reply.sampling | given)
    SamplingSettings(**sampling)
    StopConditions(strings=stop, max_tokens=max_tokens)
    return replace(reply, sampling=sampling, max_tokens=max_tokens, stop=stop)


def _checked_numbers(fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key in (*_NUMBERS, *_INTEGERS):
        if key not in fields:
            continue
        value = fields[key]
        if not (_is_integer(value) or (isinstance(value, float) and key in _NUMBERS)):
            raise SettingError(f'"{key}" must be {"a number" if key in _NUMBERS else "an integer"}')
        yield key, value


def _stop(value: object) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise SettingError('"stop" must be a text or a list of texts')
    return tuple(texts)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
