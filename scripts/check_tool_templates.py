"""Check what tinychat makes of the tools of real chat templates.

    .venv/bin/python scripts/check_tool_templates.py FOLDER

For each ``*.jinja`` of a folder one line: the family of its calls and the text that opens them, how the model is told
of tools, whether conversations with tools, calls and results are rendered as transformers renders them (where that is
installed), and of how many random calls the text that the template writes is read back. Fails if one is not.
"""

import argparse
import json
import random
import string
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from tinychat.errors import TextError
from tinychat.text.guard import unguard
from tinychat.text.template import ChatTemplate
from tinychat.text.tokenizer import Tokenizer
from tinychat.tools.definitions import Tool
from tinychat.tools.events import CallArguments, CallBegin
from tinychat.tools.formats.json_calls import JsonFormat
from tinychat.tools.formats.of_template import TaughtFormat, taught_format

SPECIAL = {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}
TYPES = ("string", "integer", "number", "boolean", "array", "object")
LETTERS = string.ascii_letters + string.digits + " äß漢🎉.,;:!?'\"\\/-_=+*#@&%$()[]{}<>|`~^\n\t"
ROUNDS = 50
Call = tuple[str, dict[str, Any]]


def text_of(draw: random.Random) -> str:
    """Return a text; none that space at its ends, which templates cut off, would tell from another."""
    return "".join(draw.choices(LETTERS, k=draw.randrange(1, 20))).strip() or "x"


def value_of(draw: random.Random, kind: str, depth: int = 2) -> Any:
    """Return a random value of a type of JSON."""
    inner = [each for each in TYPES if depth or each not in ("array", "object")]
    match kind:
        case "string":
            return text_of(draw)
        case "integer":
            return draw.randrange(-1000, 1000)
        case "number":
            return draw.randrange(-1000, 1000) / 8
        case "boolean":
            return draw.random() < 0.5
        case "array":
            return [value_of(draw, draw.choice(inner), depth - 1) for _ in range(draw.randrange(3))]
    return {f"key_{number}": value_of(draw, draw.choice(inner), depth - 1) for number in range(draw.randrange(3))}


def random_calls(draw: random.Random, count: int) -> tuple[list[Tool], list[Call]]:
    """Return tools with random schemas, and a call of each."""
    tools, calls = [], []
    for name in ("get_weather", "search_files")[:count]:
        types = {f"{key}_key": draw.choice(TYPES) for key in ("first", "second", "third")[: draw.randrange(1, 4)]}
        described = {key: {"type": kind, "description": "A value."} for key, kind in types.items()}
        schema = {"type": "object", "properties": described, "required": [*types]}
        tools.append(Tool(name, "Do something.", schema))
        calls.append((name, {key: value_of(draw, kind) for key, kind in types.items()}))
    return tools, calls


def conversation(calls: list[Call], taught: TaughtFormat, has_objects: bool) -> list[dict[str, Any]]:
    """Return a conversation with calls and their results."""
    ids = [taught.form.call_id(number, name) for number, (name, _) in enumerate(calls)]
    functions = [
        {"name": name, "arguments": arguments if has_objects else json.dumps(arguments, ensure_ascii=False)}
        for name, arguments in calls
    ]
    asked = [{"id": one, "type": "function", "function": function} for one, function in zip(ids, functions)]
    results = [
        {"role": "tool", "content": "12 degrees", "tool_call_id": one, "name": name}
        for one, (name, _) in zip(ids, calls)
    ]
    question = {"role": "user", "content": "Is it warm?"}
    return [question, {"role": "assistant", "content": "", "tool_calls": asked}, *results]


def theirs(source: str, messages: list[dict[str, Any]], tools: list[Tool], begins_reply: bool) -> str | None:
    """Return the rendering by transformers; None if the template refuses the conversation."""
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        rendered, _ = render_jinja_template(
            conversations=[messages],
            tools=[tool.as_dict() for tool in tools] or None,
            chat_template=source,
            add_generation_prompt=begins_reply,
            **SPECIAL,
        )
    except Exception:  # a template may raise anything
        return None
    return cast("str", rendered[0])


def ours(template: ChatTemplate, messages: list[dict[str, Any]], tools: list[Tool], begins_reply: bool) -> str | None:
    """Return the rendering by tinychat of the same conversation; None if the template refuses it."""
    try:
        text = template.render(messages, begins_reply, tools=[tool.as_dict() for tool in tools] or None)
    except TextError:
        return None
    return unguard(text)


def comparisons(template: ChatTemplate, taught: TaughtFormat) -> Iterator[tuple[str | None, str | None]]:
    """Yield renderings of conversations, tinychat's and transformers'."""
    tools, calls = random_calls(random.Random(0), 2)
    for count in (0, 1, 2):
        for begins_reply in (True, False):
            mine, others = (conversation(calls[:count], taught, has_objects) for has_objects in (False, True))
            if not count:
                mine = others = mine[:1]
            given = tools if taught.variable else []
            source = template.source
            # Some templates join the text of arguments: transformers' users must know that.
            as_text = theirs(source, mine, given, begins_reply)
            as_object = theirs(source, others, given, begins_reply)
            text = ours(template, mine, given, begins_reply)
            yield text, as_text if text == as_text else as_object


def reads_back(template: ChatTemplate, taught: TaughtFormat, seed: int) -> bool:
    """Return whether random calls are what is found in the text that a template writes for them."""
    draw = random.Random(seed)
    for count in (2, 1):
        tools, calls = random_calls(draw, count)
        messages = conversation(calls, taught, False)[:2]
        reply = (ours(template, messages, tools, False) or "").rpartition(messages[0]["content"])[2]
        # Some templates refuse two calls, or leave out the second.
        if calls[-1][0] in reply:
            break
    else:
        return False
    parser = taught.form.parser(tools)
    if isinstance(taught.form, JsonFormat) and taught.form.is_bare:
        reply = reply[reply.index("{") :]
    events = [event for letter in reply for event in parser.feed(letter)] + [*parser.finish()]
    found: list[tuple[str, str]] = []
    for event in events:
        if isinstance(event, CallBegin):
            found.append((event.name, ""))
        elif isinstance(event, CallArguments):
            found[-1] = (found[-1][0], found[-1][1] + event.text)
    try:
        return [(name, json.loads(text)) for name, text in found] == calls
    except ValueError:
        return False


def check(path: Path, with_transformers: bool) -> bool:
    """Print the line of a template; return whether nothing is wrong."""
    tokenizer = SimpleNamespace(special_tokens=SPECIAL, special_ids=frozenset[int](), added_tokens={})
    try:
        template = ChatTemplate(path.read_text(encoding="utf-8"), cast("Tokenizer", tokenizer), path.name)
    except TextError as error:
        print(f"{path.stem:50} {error}")
        return False
    taught = taught_format(template)
    told = f"by {taught.variable}" if taught.variable else "by a prompt of ours"
    written = sum(reads_back(template, taught, seed) for seed in range(ROUNDS)) if taught.writes_calls else None
    pairs = [*comparisons(template, taught)] if with_transformers else []
    same = sum(mine == other for mine, other in pairs)
    refused = sum(mine is None and other is None for mine, other in pairs)
    rendered = f"{same}/{len(pairs)} as transformers" if pairs else "not compared"
    rendered += f" ({refused} refused by both)" if refused else ""
    back = "writes no calls" if written is None else f"{written}/{ROUNDS} read back"
    print(f"{path.stem:50} {taught.form.name:14} {taught.form.opening!r:32} {told:20} {rendered:42} {back}")
    return same == len(pairs) and written in (None, ROUNDS)


def main() -> int:
    """Check all templates of a folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    paths = sorted(parser.parse_args().folder.glob("*.jinja"))
    if not paths:
        print("no *.jinja in this folder", file=sys.stderr)
        return 2
    try:
        import transformers  # noqa: F401
    except ImportError:
        with_transformers = False
    else:
        with_transformers = True
    sound = [check(path, with_transformers) for path in paths]
    print(f"{sum(sound)} of {len(sound)} templates without a difference")
    return 0 if all(sound) else 1


if __name__ == "__main__":
    sys.exit(main())
