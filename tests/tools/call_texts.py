"""Formats of calls as the families of models write them, and what a parser finds in a text, split anywhere."""

import json

from tinychat.tools.definitions import ToolCall
from tinychat.tools.events import CallArguments, CallBegin, CallText, CallThought
from tinychat.tools.formats import known
from tinychat.tools.formats.json_calls import JsonFormat
from tinychat.tools.formats.named import NamedFormat
from tinychat.tools.formats.tagged import TaggedFormat

FORMATS = {
    "hermes": known.HERMES,
    "mistral list": known.MISTRAL_LIST,
    "command r": JsonFormat(
        section_begin="<|START_ACTION|>[\n    ",
        section_end="\n]<|END_ACTION|>",
        separator=",\n    ",
        name_key="tool_name",
        arguments_key="parameters",
    ),
    "apertus": JsonFormat(
        section_begin="<|tools_prefix|>[", section_end="]<|tools_suffix|>", separator=", ", name_key=""
    ),
    "llama 3": known.LLAMA,
    "mistral": known.MISTRAL,
    "mistral 3.2": NamedFormat(call_begin="[TOOL_CALLS]", name_end="[CALL_ID]{id}[ARGS]", separator=""),
    "kimi": known.KIMI,
    "solar": NamedFormat(
        section_begin="<|tool_calls|>",
        section_end="<|calls|>",
        call_begin="<|tool_call:begin|>{id}<|tool_call:name|>",
        name_end="<|tool_call:args|>",
        call_end="<|tool_call:end|>",
        separator="",
    ),
    "deepseek r1": NamedFormat(
        section_begin="<｜tool▁calls▁begin｜>",  # noqa: RUF001
        section_end="<｜tool▁calls▁end｜>",  # noqa: RUF001
        call_begin="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",  # noqa: RUF001
        name_end="\n```json\n",
        call_end="\n```<｜tool▁call▁end｜>",  # noqa: RUF001
    ),
    "functionary": NamedFormat(call_begin="<function=", name_end=">", call_end="</function>", separator=""),
    "qwen": known.QWEN_CODER,
    "minimax": TaggedFormat(
        section_begin="<minimax:tool_call>\n",
        section_end="\n</minimax:tool_call>",
        call_begin='<invoke name="',
        name_end='">\n',
        key_begin='<parameter name="',
        key_end='">',
        value_end="</parameter>\n",
        call_end="</invoke>",
    ),
    "glm": known.GLM,
    "deepseek 3.2": TaggedFormat(
        section_begin="<｜DSML｜function_calls>\n",  # noqa: RUF001
        section_end="\n</｜DSML｜function_calls>",  # noqa: RUF001
        call_begin='<｜DSML｜invoke name="',  # noqa: RUF001
        name_end='">\n',
        key_begin='<｜DSML｜parameter name="',  # noqa: RUF001
        key_end='" string="{type}">',
        value_end="</｜DSML｜parameter>\n",  # noqa: RUF001
        call_end="</｜DSML｜invoke>",  # noqa: RUF001
        text_type="true",
        other_type="false",
    ),
    "lfm2": known.LFM2,
    "olmo 3": known.OLMO,
    "gemma 4": known.GEMMA,
    "functiongemma": known.FUNCTIONGEMMA,
}


def found(form, tools, text, cuts=()):
    """Return the events of a text that comes in parts, those of one kind in a row joined, and the parser."""
    parser, ends = form.parser(tools), [*sorted(cuts), len(text)]
    events = []
    for start, end in zip([0, *ends], ends):
        events += parser.feed(text[start:end])
    events += parser.finish()
    joined = []
    for event in events:
        last = joined[-1] if joined else None
        if isinstance(event, CallText | CallThought) and type(event) is type(last):
            joined[-1] = type(event)(last.text + event.text)
        elif isinstance(event, CallArguments) and isinstance(last, CallArguments) and last.number == event.number:
            joined[-1] = CallArguments(event.number, last.text + event.text)
        else:
            joined.append(event)
    return joined, parser


def everywhere(form, tools, text):
    """Return the events of a text and the parser, after the same of every other split."""
    whole, parser = found(form, tools, text)
    for cuts in (range(1, len(text)), *([cut] for cut in range(1, len(text)))):
        events, other = found(form, tools, text, cuts)
        assert events == whole, cuts
        assert (other.count, other.ended, other.faults) == (parser.count, parser.ended, parser.faults)
    return whole, parser


def calls_of(events):
    """Return names and arguments of the calls among events, and the text beside them."""
    names = [event.name for event in events if isinstance(event, CallBegin)]
    arguments = [json.loads(event.text) for event in events if isinstance(event, CallArguments)]
    return [*zip(names, arguments, strict=True)], [event.text for event in events if isinstance(event, CallText)]


def spelled(form, calls):
    """Return calls, each a name and arguments, as a model writes them in a format."""
    return form.spell(
        *[
            ToolCall(form.call_id(number, name), name, json.dumps(arguments, ensure_ascii=False))
            for number, (name, arguments) in enumerate(calls)
        ]
    )
