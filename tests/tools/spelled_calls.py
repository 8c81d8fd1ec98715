"""Calls as models write them, in each format: the other side of `tinychat.tools.grammars`."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from tinychat.tools.grammars import gemma, harmony, json_calls, pythonic, tagged


def compact(value):
    return json.dumps(value, ensure_ascii=False)


def python_call(name, arguments):
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def gemma_value(value, mark):
    if isinstance(value, str):
        return f"{mark}{value}{mark}"
    if isinstance(value, list):
        return f"[{','.join(gemma_value(item, mark) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{gemma_value(item, mark)}' for key, item in value.items())}}}"
    return compact(value)


def raw(value):
    return value if isinstance(value, str) else compact(value)


def hermes(calls):
    each = (
        f'<tool_call>\n{{"name": {compact(name)}, "arguments": {compact(got)}}}\n</tool_call>' for name, got in calls
    )
    return "\n".join(each)


def mistral(calls):
    return "".join(f"[TOOL_CALLS]{name}[ARGS]{compact(got)}" for name, got in calls)


def mistral_list(calls):
    return f"[TOOL_CALLS] {compact([{'name': name, 'arguments': got} for name, got in calls])}"


def llama(calls):
    return ";".join(compact({"name": name, "parameters": got}) for name, got in calls)


def kimi(calls):
    each = (
        f"<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>{compact(got)}<|tool_call_end|>"
        for number, (name, got) in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{''.join(each)}<|tool_calls_section_end|>"


def lfm2(calls):
    return f"<|tool_call_start|>[{', '.join(python_call(*call) for call in calls)}]<|tool_call_end|>"


def olmo(calls):
    return "<function_calls>" + "\n".join(python_call(*call) for call in calls) + "</function_calls>"


def gemma4(calls, tags=("<|tool_call>", "<tool_call|>"), mark='<|"|>'):
    return "".join(f"{tags[0]}call:{name}{gemma_value(got, mark)}{tags[1]}" for name, got in calls)


def functiongemma(calls):
    return gemma4(calls, ("<start_function_call>", "<end_function_call>"), "<escape>")


def qwen_coder(calls):
    return "\n".join(
        f"<tool_call>\n<function={name}>\n"
        + "".join(f"<parameter={key}>\n{raw(value)}\n</parameter>\n" for key, value in got.items())
        + "</function>\n</tool_call>"
        for name, got in calls
    )


def glm(calls):
    return "\n".join(
        f"<tool_call>{name}\n"
        + "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{raw(value)}</arg_value>\n" for key, value in got.items())
        + "</tool_call>"
        for name, got in calls
    )


def gpt_oss(calls):
    ((name, got),) = calls
    return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{compact(got)}"


class Spelling(NamedTuple):
    """A format: its grammar, its calls as text, its markers, and whether a reply may have several calls.

    Members of objects come in any order where `order` is "any", only arguments where it is "arguments".
    """

    grammar: Callable[..., str | None]
    text: Callable[[list[tuple[str, Any]]], str]
    markers: tuple[str, ...]
    has_several: bool = True
    order: str = "schema"


SPELLINGS = {
    "hermes": Spelling(json_calls.hermes_grammar, hermes, ("<tool_call>", "</tool_call>")),
    "mistral": Spelling(json_calls.mistral_grammar, mistral, ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")),
    "mistral list": Spelling(json_calls.mistral_list_grammar, mistral_list, ("[TOOL_CALLS]",)),
    "llama": Spelling(json_calls.llama_grammar, llama, ("<|python_tag|>",)),
    "kimi": Spelling(
        json_calls.kimi_grammar,
        kimi,
        (
            *(f"<|tool_call{name}|>" for name in ("_begin", "_end", "_argument_begin")),
            *(f"<|tool_calls_section_{name}|>" for name in ("begin", "end")),
        ),
    ),
    "lfm2": Spelling(pythonic.lfm2_grammar, lfm2, ("<|tool_call_start|>", "<|tool_call_end|>"), order="any"),
    "olmo": Spelling(pythonic.olmo_grammar, olmo, ("<function_calls>", "</function_calls>"), order="any"),
    "gemma": Spelling(gemma.gemma_grammar, gemma4, ("<|tool_call>", "<tool_call|>", '<|"|>'), order="any"),
    "functiongemma": Spelling(
        gemma.functiongemma_grammar,
        functiongemma,
        ("<start_function_call>", "<end_function_call>", "<escape>"),
        order="any",
    ),
    "qwen coder": Spelling(tagged.qwen_coder_grammar, qwen_coder, ("<tool_call>", "</tool_call>"), order="arguments"),
    "glm": Spelling(
        tagged.glm_grammar,
        glm,
        ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        order="arguments",
    ),
    "harmony": Spelling(
        harmony.harmony_grammar,
        gpt_oss,
        ("<|channel|>", "<|constrain|>", "<|message|>", "<|start|>", "<|end|>"),
        has_several=False,
    ),
}
