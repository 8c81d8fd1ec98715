"""Files a little, or quite, different from sound ones; all from a seeded generator."""

from __future__ import annotations

import io
import json
import zipfile
from copy import deepcopy
from random import Random
from typing import Any

from fuzzing import hand_made
from fuzzing.cache_files import mutated_cache_file
from fuzzing.gguf_headers import mutated_header

_NUMBERS = [0, -1, 1, 0.5, 255, 2**24, 2**31, 2**32 - 1, 2**53, 2**62, 2**63, 10**30, 10**400, 1e308, -1e-300]
_TEXTS = [
    "",
    "a",
    "\ud800",
    "\0",
    "\u202e\x1b[2J",
    "▁",
    "<s>",
    "</s>",
    "(a|aa)+$",
    "{{",
    "x" * 3000,
    "../../x",
    "/dev/zero",
]
_OTHERS = [None, True, False, [], {}, [[]], [0] * 100, {"a": {"a": {"a": None}}}, {"type": "Sequence"}]
_CALLS = [
    "{{ 'a' * 10 ** 8 }}", "{{ '{:>99999999}'.format(1) }}", "{{ '%99999999d' % 1 }}", "{{ messages|tojson }}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "{{ ''.__class__ }}",
    "{{ ('a' * 900000).rfind('b' ~ 'a' * 400000) }}", "{% set x = [messages] * 9999 %}{{ x }}", "{{ messages[9] }}",
    "{{ ('a' * 900000).strip('b' * 400000 ~ 'a') }}", "{% set messages = messages[1:] %}", "{{ raise_exception('x') }}",
    "{{ ('a' * 99999)|replace('', 'b' * 9999) }}", "{{ 'x'|indent(999999) }}", "{{ 1 / 0 }}", "{{ namespace(a=1) }}",
    "{{ ('(' * 999999)|title|capitalize|unique|list|length }}", "{{ ('9' * 99999)|int ** 99 }}", "{{ '\\ud800' }}",
    "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}", "{{ 'x'.center(10 ** 9) }}", "{{ [1, 'a']|sort }}",
    "{{ dict(messages[0])|dictsort|groupby(0)|list }}", "{{ strftime_now('%Y' * 50) }}", "{{ self }}", "{{ loop }}",
]  # fmt: skip


def mutated(name: str, seeds: tuple[bytes, ...], draw: Random) -> bytes:
    """Return a file for the reader of this name."""
    if name in hand_made.MAKERS and draw.random() < 0.3:
        return hand_made.MAKERS[name](draw)
    data = draw.choice(seeds)
    if name == "template":
        return _mutated_template(data, draw)
    if name.startswith(("gguf_header", "gguf_mmproj")):
        return mutated_header(data, draw)
    if name == "pytorch" and draw.random() < 0.7:
        return _mutated_archive(data, draw)
    if name == "safetensors" and draw.random() < 0.7:
        return _mutated_header(data, draw)
    if name == "cache" and draw.random() < 0.8:
        return mutated_cache_file(data, lambda text: _mutated_json(text, draw), draw)
    if draw.random() < 0.7:
        lines = data.split(b"\n") if name in ("tasks", "results") else [data]
        place = draw.randrange(len(lines))
        try:
            lines[place] = _mutated_json(lines[place], draw)
            return b"\n".join(lines)
        except (ValueError, RecursionError):
            pass
    return _mutated_bytes(data, draw)


def _mutated_bytes(data: bytes, draw: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        place = draw.randrange(len(changed) + 1)
        match draw.randrange(5):
            case 0 if place < len(changed):
                changed[place] = draw.randrange(256)
            case 1 if place < len(changed):
                changed[place] ^= 1 << draw.randrange(8)
            case 2:
                del changed[place : place + draw.randint(1, 20)]
            case 3:
                start = draw.randrange(len(changed) + 1)
                changed[place:place] = changed[start : start + draw.randint(1, 50)] * draw.choice([1, 1, 1, 1000])
            case _:
                changed[place:place] = draw.choice([b"\xff", b"\0", b"9" * 400, b"[" * 3000, b'"', b"\n", b"\\ud800"])
    return bytes(changed)


def _mutated_json(data: bytes, draw: Random) -> bytes:
    """Change values, names and places in a JSON text."""
    holder = [json.loads(data)]
    for _ in range(draw.choice([1, 1, 2, 4])):
        places = [*_places(holder)]
        parent, key = draw.choice(places)
        match draw.randrange(6):
            case 0:
                del parent[key]
                if not holder:
                    return b""
            case 1:
                other, other_key = draw.choice(places)
                parent[key] = json.loads(json.dumps(other[other_key]))
            case 2 if isinstance(parent, dict):
                parent[draw.choice([*_TEXTS, str(draw.randrange(99)), f"{key}_"])] = parent.pop(key)
            case 3 if isinstance(parent, list):
                parent *= draw.choice([2, 2, 200])
            case _:
                parent[key] = deepcopy(draw.choice(draw.choice([_NUMBERS, _TEXTS, _OTHERS])))
    return json.dumps(holder[0], ensure_ascii=draw.random() < 0.7).encode("utf-8", "replace")


def _places(value: Any) -> Any:
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in list(keys):
        yield value, key
        yield from _places(value[key])


def _mutated_header(data: bytes, draw: Random) -> bytes:
    length = int.from_bytes(data[:8], "little")
    header = _mutated_json(data[8 : 8 + length], draw)
    return len(header).to_bytes(8, "little") + header + data[8 + length :]


def _mutated_archive(data: bytes, draw: Random) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(file, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            target.writestr(zipfile.ZipInfo(name), _mutated_bytes(content, draw) if name.endswith(".pkl") else content)
    return file.getvalue()


def _mutated_template(data: bytes, draw: Random) -> bytes:
    if draw.random() < 0.4:
        return _mutated_bytes(data, draw)
    text = data.decode()
    for _ in range(draw.randint(1, 3)):
        place = draw.choice([0, len(text), draw.randrange(len(text) + 1)])
        text = text[:place] + draw.choice(_CALLS) + text[place:]
    return text.encode("utf-8", "surrogatepass")
