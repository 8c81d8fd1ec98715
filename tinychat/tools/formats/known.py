"""The formats of known families, for models whose chat templates write no calls."""

from __future__ import annotations

from tinychat.tools.formats.braced import BracedFormat
from tinychat.tools.formats.call_format import CallFormat
from tinychat.tools.formats.contents import ContentFormat
from tinychat.tools.formats.harmony import HarmonyFormat
from tinychat.tools.formats.json_calls import JsonFormat
from tinychat.tools.formats.named import NamedFormat
from tinychat.tools.formats.pythonic import PythonicFormat
from tinychat.tools.formats.recipients import RecipientFormat
from tinychat.tools.formats.tagged import TaggedFormat

HERMES = JsonFormat(call_begin="<tool_call>\n", call_end="\n</tool_call>")
MISTRAL_LIST = JsonFormat(section_begin="[TOOL_CALLS][", section_end="]", separator=", ", id_rule="nine")
GRANITE_LIST = JsonFormat(section_begin="<|tool_call|>[", section_end="]", separator=", ")
PHI_LIST = JsonFormat(section_begin="<|tool_call|>[", section_end="]<|/tool_call|>", separator=", ")
LLAMA = JsonFormat(arguments_key="parameters", separator="; ", is_bare=True)
MISTRAL = NamedFormat(call_begin="[TOOL_CALLS]", name_end="[ARGS]", separator="", id_rule="nine")
KIMI = NamedFormat(
    section_begin="<|tool_calls_section_begin|>",
    section_end="<|tool_calls_section_end|>",
    call_begin="<|tool_call_begin|>functions.",
    name_end=":{number}<|tool_call_argument_begin|>",
    call_end="<|tool_call_end|>",
    separator="",
    id_rule="named",
)
QWEN_CODER = TaggedFormat(
    call_begin="<tool_call>\n<function=",
    name_end=">\n",
    key_begin="<parameter=",
    key_end=">\n",
    value_end="\n</parameter>\n",
    call_end="</function>\n</tool_call>",
)
GLM = TaggedFormat(
    call_begin="<tool_call>",
    name_end="\n",
    key_begin="<arg_key>",
    key_end="</arg_key>\n<arg_value>",
    value_end="</arg_value>\n",
    call_end="</tool_call>",
)
LFM2 = PythonicFormat(section_begin="<|tool_call_start|>[", section_end="]<|tool_call_end|>", separator=", ")
OLMO = PythonicFormat(section_begin="<function_calls>\n", section_end="\n</function_calls>")
GEMMA = BracedFormat(call_begin="<|tool_call>call:", call_end="<tool_call|>", quote='<|"|>', separator="")
FUNCTIONGEMMA = BracedFormat(
    call_begin="<start_function_call>call:", call_end="<end_function_call>", quote="<escape>", separator=""
)
HARMONY = HarmonyFormat()
MUSE = RecipientFormat()
INKLING = ContentFormat()

# Those of replies that are messages, by marks of their templates, which write calls in other messages than texts.
MESSAGES: tuple[tuple[tuple[str, ...], CallFormat], ...] = (
    (("<|channel|>", "<|message|>", "functions."), HARMONY),
    (("<|message|>", "<|eom|>", "<atem:function_calls>"), MUSE),
    (("<|message_model|>", "<|content_thinking|>", "<|content_invoke_tool_json|>"), INKLING),
)
# Marks of a family, in its template or among its added tokens; the first that is found counts.
MARKS: tuple[tuple[str, CallFormat], ...] = (
    ("<|tool_call_start|>", LFM2),
    ("<|tool_list_start|>", LFM2),
    ("<|tool_calls_section_begin|>", KIMI),
    ("<start_function_call>", FUNCTIONGEMMA),
    ("<|tool_call>call:", GEMMA),
    ("<function_calls>", OLMO),
    ("<arg_key>", GLM),
    ("<function=", QWEN_CODER),
    ("<tool_call>", HERMES),
    ("<|/tool_call|>", PHI_LIST),
    ("<|tool_call|>", GRANITE_LIST),
    ("[ARGS]", MISTRAL),
    ("[TOOL_CALLS]", MISTRAL_LIST),
    ("<|python_tag|>", LLAMA),
)
