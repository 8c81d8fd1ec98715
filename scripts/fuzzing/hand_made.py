"""Files made by hand to be slow, large or deep: what changed bytes rarely hit."""

from __future__ import annotations

import base64
import json
from random import Random

_DEPTHS = (3, 30, 300, 1000, 3000, 9000)
_NUMBERS = ("9" * 5000, "0x" + "f" * 5000, "-1", "1e999", "nan", "0.5", "7", "1979-05-27", "true")
_NAMES = ("temperature", "kv", "seed", "system", "stop", "model", "a", '"\\u001b[2J"', "a." * 9000 + "a", "models.a.kv")


def configuration(draw: Random) -> bytes:
    """Return settings of wrong kinds, sizes and places."""
    lines = []
    for _ in range(draw.randint(1, 6)):
        depth = draw.choice(_DEPTHS)
        values = (*_NUMBERS, "[" * depth + "]" * depth, '"' + "x" * depth + '"', "{a = " * 9 + "1" + "}" * 9)
        header = draw.choice(
            ["", "[roles.a]\n", "[models]\n", "[aliases]\n", "[[roles]]\n", "[" + "a." * depth + "a]\n"]
        )
        lines.append(f"{header}{draw.choice(_NAMES)} = {draw.choice(values)}")
    return "\n".join(lines).encode()


def schema(draw: Random) -> bytes:
    """Return a JSON schema of long chains of references, or of multiples whose product is large."""
    depth, key = draw.choice(_DEPTHS), draw.choice(["multipleOf", r"multiple\u004ff"])
    number = draw.choice([9973, 999983, 2147483648, 0.001, 1e300])
    end = {"type": "integer", "allOf": [{"multipleOf": number}, {"multipleOf": 9967}]}

    def link(target: str) -> dict[str, object]:
        reference = {"$ref": target}
        kinds = [
            reference,
            {"type": "object", "properties": {"a": reference}, "required": ["a"]},
            {"type": "array", "items": reference, "minItems": draw.choice([0, 1, 9999])},
            {draw.choice(["allOf", "anyOf", "oneOf"]): [reference, {"type": "string", "maxLength": depth}]},
        ]
        return draw.choice(kinds)

    definitions: dict[str, object] = {f"d{number}": link(f"#/$defs/d{number + 1}") for number in range(depth)}
    text = json.dumps({"$defs": definitions | {f"d{depth}": draw.choice([end, {}])}, "$ref": "#/$defs/d0"})
    return text.replace("multipleOf", key).encode()


def grammar(draw: Random) -> bytes:
    """Return a grammar in Lark or GBNF: long chains, large repetitions, ambiguity, or a schema inside."""
    depth = draw.choice(_DEPTHS)
    form = draw.randrange(5)
    if form == 0:
        return b"start: %json " + schema(draw)
    if form == 1:
        rules = "".join(f'r{number} ::= r{number + 1} "a" | [a-z]{{1,{depth}}}\n' for number in range(depth))
        return f'root ::= r0\n{rules}r{depth} ::= "x"'.encode()
    if form == 2:
        return f"start: A\nA: /(.*a.{{{depth}}}){{3}}/ & ~/.*b.{{{depth}}}/ & /.*c/".encode()
    if form == 3:
        return f'start: x{{1,{depth}}}\nx: x x | "a" | ""'.encode()
    name, rest = draw.choice([("r", '"a"'), ("r", "r0"), ("T", "/b+/")])
    rules = "".join(f"{name}{number}: {name}{number + 1} {rest}\n" for number in range(depth))
    return f'start: {name}0\n{rules}{name}{depth}: "x"\n'.encode()


def tiktoken(draw: Random) -> bytes:
    """Return a vocabulary of sound form, with tokens inside of tokens, before their parts, and of great length."""
    tokens = [bytes([value]) for value in range(256)]
    tokens += [bytes(draw.choices(b"ab \n\xe4", k=draw.choice([2, 3, 8]))) for _ in range(draw.choice([9, 99, 999]))]
    tokens += [bytes(draw.choices(b"ab", k=1)) * draw.choice([99, 999, 3000, 9000]) for _ in range(draw.randrange(3))]
    draw.shuffle(tokens)
    unique = dict.fromkeys(tokens)
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(unique))


MAKERS = {"configuration": configuration, "schema": schema, "grammar": grammar, "tiktoken": tiktoken}
"""By the name of the reader."""
