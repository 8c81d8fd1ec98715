"""Tokens of models that mark thoughts in their own way: a reply has tags in their place."""

import re

import numpy as np
import pytest
from fake_model import VOCAB_SIZE, ByteTokenizer
from tools import family_templates

from tinychat.generate.constraints import Constraints
from tinychat.generate.grammar import Grammar
from tinychat.generate.prompt import Prompt
from tinychat.generate.reply import Reply
from tinychat.generate.request import Request
from tinychat.text.template import ChatTemplate
from tinychat.text.think_sections import CLOSING_TEXT
from tinychat.text.thought_marks import thought_marks_of
from tinychat.text.tokenizer import Tokenizer
from tinychat.tools.definitions import Tool, ToolChoice
from tinychat.tools.formats import known
from tinychat.tools.formats.known import HERMES

EOS = 257
HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>")
SOLAR = ("<|begin|>", "<|think|>", "<|content|>", "<|end|>", "<|calls|>")
MUSE = ("<|start|>", "<|message|>", "<|eom|>", "<|eot|>")
INKLING = ("<|message_model|>", "<|end_message|>", "<|content_thinking|>", "<|content_text|>")
MISTRAL, GEMMA, COHERE = (
    ("[THINK]", "[/THINK]"),
    ("<|channel>", "<channel|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
)


class MarkTokenizer(ByteTokenizer):
    """Bytes, and some control tokens."""

    def __init__(self, *names):
        self.names = dict(enumerate(names, VOCAB_SIZE))
        self.vocab_size = VOCAB_SIZE + len(names)
        self.added_tokens = ByteTokenizer.added_tokens | {name: i for i, name in self.names.items()}
        self.special_ids = ByteTokenizer.special_ids | self.names.keys()
        self.thought_marks = thought_marks_of(self.added_tokens, self.special_ids)

    def encode_rendered(self, text):
        parts = re.split("(" + "|".join(map(re.escape, self.added_tokens)) + ")", text)
        ids = ([self.added_tokens[part]] if part in self.added_tokens else list(part.encode()) for part in parts)
        return [token_id for some in ids for token_id in some]

    def token_bytes(self, token_id):
        return self.names[token_id].encode() if token_id in self.names else super().token_bytes(token_id)


def begin(names, **fields):
    """Return the reply of a model with these control tokens, whose fields are those of the prompt or the request."""
    tokenizer = MarkTokenizer(*names)
    of_prompt = {key: fields.pop(key) for key in ("opens_thinking", "shown", "joins_reply") if key in fields}
    prompt = Prompt([256], **{"joins_reply": False, **of_prompt})
    return Reply(prompt, Request(temperature=0.0, **fields), tokenizer, frozenset({EOS})), tokenizer


def write(reply, tokenizer, text):
    """Let the model want to write `text`, and end; return what has become of the reply."""
    for token_id in [*(tokenizer.encode_rendered(text) if isinstance(text, str) else text), EOS]:
        row = np.zeros(tokenizer.vocab_size, np.float32)
        row[token_id] = 9
        reply.accept(row)
        if reply.finish_reason is not None:
            break
    return reply.text


@pytest.mark.parametrize(
    ("names", "written", "expected"),
    [
        (MISTRAL, "[THINK]Hm.[/THINK]Yes.", "<think>\nHm.\n</think>\n\nYes."),
        (COHERE, "<|START_THINKING|>Hm.<|END_THINKING|>Yes.", "<think>\nHm.\n</think>\n\nYes."),
        (GEMMA, "<|channel>thought\nHm.<channel|>Yes.", "<think>\nHm.\n</think>\n\nYes."),
        (GEMMA, "<|channel>thought\n<channel|>Yes.", "<think>\n\n</think>\n\nYes."),
        (MISTRAL, "Yes. [THINK]Hm.[/THINK] So.", "Yes.  So."),
        (MISTRAL, "[THINK]Hm.", "<think>\nHm."),
        (
            HARMONY,
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
            "<think>\nHm.\n</think>\n\nYes.",
        ),
        (
            HARMONY,
            "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>analysis<|message|>B<|end|>"
            "<|start|>assistant<|channel|>final <|constrain|>json<|message|>{}",
            "<think>\nA\n\nB\n</think>\n\n{}",
        ),
        (HARMONY, "<|channel|>final<|message|>Yes.", "Yes."),
        (HARMONY, "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>anal", "I look."),
        (
            SOLAR,
            "<|think|>Hm.<|end|><|begin|>assistant<|content|>Yes.<|end|>",
            "<think>\nHm.\n</think>\n\nYes.",
        ),
        (SOLAR, "<|content|>Yes.", "Yes."),
        (
            MUSE,
            " to=self<|message|>Hm.<|eom|><|start|>assistant to=user<|message|>Yes.",
            "<think>\nHm.\n</think>\n\nYes.",
        ),
        (MUSE, " to=user<|message|>Yes to=self.", "Yes to=self."),
        (
            INKLING,
            "<|content_thinking|>Hm.<|end_message|><|message_model|><|content_text|>Yes.<|end_message|>",
            "<think>\nHm.\n</think>\n\nYes.",
        ),
        (INKLING, "Yes.<|end_message|>", "Yes."),
        (
            INKLING,
            "<|content_thinking|>A<|end_message|><|message_model|><|content_thinking|>B<|end_message|>\n"
            "<|message_model|>Yes.<|end_message|>",
            "<think>\nA\n\nB\n</think>\n\nYes.",
        ),
        (
            INKLING,
            "<|content_text|>A<|end_message|><|message_model|><|content_thinking|>B<|end_message|>"
            "<|message_model|><|content_text|>C",
            "A\n\nC",
        ),
        # Where no template has begun a message.
        (MUSE, " two", " two"),
        (("<think>", "</think>"), "<think>Hm.</think>Yes.", "<think>\nHm.\n</think>\n\nYes."),
        (("<think>",), "<think>Hm.", "Hm."),
        (("<|channel|>",), "<|channel|>analysis", "analysis"),
    ],
)
def test_marks_become_tags(names, written, expected):
    assert write(*begin(names), written) == expected


def test_tags_that_are_text_stay_as_they_are():
    tokenizer = MarkTokenizer("<think>", "</think>")
    assert thought_marks_of(tokenizer.added_tokens, ByteTokenizer.special_ids) is None


def test_a_reply_that_begins_in_thoughts():
    assert write(*begin(MISTRAL, opens_thinking=True), "Hm.[/THINK]Yes.") == "Hm.\n</think>\n\nYes."


def test_thoughts_end_where_a_mark_that_is_shown_begins():
    names = (*GEMMA, "<|tool_call>")
    reply, tokenizer = begin(names, shown=frozenset({VOCAB_SIZE + 2}))
    assert write(reply, tokenizer, "<|channel>thought\nHm.<|tool_call>x") == "<think>\nHm.\n</think>\n\n<|tool_call>x"


def test_marks_that_are_shown_are_text():
    reply, tokenizer = begin(HARMONY, shown=frozenset(range(VOCAB_SIZE, VOCAB_SIZE + len(HARMONY))))
    text = "<|channel|>analysis<|message|>Hm.<|end|>"
    assert write(reply, tokenizer, text) == text


@pytest.mark.parametrize(
    ("names", "before", "closing"),
    [
        (MISTRAL, "[THINK]", "[/THINK]"),
        (GEMMA, "<|channel>thought\n", "<channel|>"),
        (HARMONY, "<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
        (SOLAR, "<|think|>", "<|end|><|begin|>assistant<|content|>"),
        (MUSE, " to=self<|message|>", "<|eom|><|start|>assistant to=user<|message|>"),
        (INKLING, "<|content_thinking|>", "<|end_message|><|message_model|><|content_text|>"),
    ],
)
@pytest.mark.parametrize("budget", [0, 2])
def test_a_budget_ends_thoughts_by_the_models_own_mark(names, before, closing, budget):
    reply, tokenizer = begin(names, think_budget=budget)
    forced = tokenizer.encode_rendered(closing)
    text = write(reply, tokenizer, before + "Hm"[:budget] + "x" * len(forced) + "Yes.")
    assert text == f"<think>\n{'Hm'[:budget]}\n</think>\n\nYes."
    opening = tokenizer.encode_rendered(before + "Hm"[:budget])
    assert reply.token_ids[len(opening) :][: len(forced)] == forced


@pytest.mark.parametrize(
    ("names", "before"),
    [
        (HARMONY, "<|channel|>final<|message|>"),
        (SOLAR, "<|content|>"),
        (MUSE, " to=user<|message|>"),
        (INKLING, "<|content_text|>"),
        (MISTRAL, ""),
    ],
)
def test_a_grammar_holds_the_answer(names, before):
    tokenizer = MarkTokenizer(*names)
    constraint = Constraints(tokenizer, tokenizer.vocab_size, [EOS]).of(Grammar.from_text('start: "ab"'))
    reply, tokenizer = begin(names, constraint=constraint)
    header = tokenizer.encode_rendered(before)
    assert write(reply, tokenizer, "x" * len(header) + "ab") == "ab"
    assert reply.token_ids == [*header, *b"ab"]


@pytest.mark.parametrize("opens", [True, False])
def test_calls_that_are_held_may_come_behind_thoughts(opens):
    names = MISTRAL
    tokenizer = MarkTokenizer(*names)
    choice = ToolChoice((Tool("f", "", {"type": "object", "properties": {}}),), required=True, constrains=True)
    constraint = Constraints(tokenizer, tokenizer.vocab_size, [EOS]).of_calls(HERMES, choice)
    reply, tokenizer = begin(names, constraint=constraint, opens_thinking=opens)
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    text = write(reply, tokenizer, ("" if opens else "[THINK]") + "I <tool_call>[/THINK]" + call)
    assert text == ("" if opens else "<think>\n") + "I <tool_call>\n</think>\n\n" + call


TEMPLATE = """{% for m in messages %}<{{ m.role }}>{% if m.thinking %}T:{{ m.thinking }};{% endif %}\
{% if m.reasoning_content %}R:{{ m.reasoning_content }};{% endif %}{{ m.content }}{% endfor %}\
{% if add_generation_prompt and think %}[THINK]{% endif %}"""
TURNS = [
    {"role": "user", "content": "<think>x</think>?"},
    {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nA"},
]


def test_templates_get_thoughts_apart_from_the_answer():
    template = ChatTemplate(TEMPLATE, MarkTokenizer(*MISTRAL), "template")
    assert template.render(TURNS, False) == "<user><think>x</think>?<assistant>T:Hm.;R:Hm.;A"
    plain = ChatTemplate(TEMPLATE, ByteTokenizer(), "template")
    assert plain.render(TURNS, False).endswith("<assistant><think>\nHm.\n</think>\n\nA")
    asked = [TURNS[0], {"role": "assistant", "content": "A", "reasoning": "B"}]
    assert plain.render(asked, False).endswith("<assistant>T:B;R:B;A")


def test_a_template_writes_messages_as_the_model_has_written_them():
    written = "<|content_thinking|>Hm.<|end_message|><|message_model|><|content_text|>Yes.<|end_message|>"
    reply, tokenizer = begin(INKLING)
    message = {"role": "assistant", "content": write(reply, tokenizer, written)}
    template = ChatTemplate(family_templates.INKLING, tokenizer, "template")
    before = template.render([TURNS[0]])
    assert template.render([TURNS[0], message], False) == f"{before}{written}<|content_model_end_sampling|>"


def test_a_template_that_begins_thoughts():
    template = ChatTemplate(TEMPLATE, MarkTokenizer(*MISTRAL), "template")
    assert template.opens_thinking_with(think=True) and not template.opens_thinking


ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"


@pytest.mark.parametrize(
    ("names", "written", "expected"),
    [
        (MISTRAL, "[THINK]A[/THINK]\n[THINK]B[/THINK]Yes.", "<think>\nA\n\nB\n</think>\n\nYes."),
        (MISTRAL, "[THINK]A[/THINK]", "<think>\nA"),
        (HARMONY, f"{ANALYSIS}A{FINAL.replace('final', 'commentary')}B{FINAL}C", "<think>\nA\n</think>\n\nB\n\nC"),
        (HARMONY, f"{ANALYSIS}Its tag <think>.{FINAL}Yes.", "<think>\nIts tag <think>.\n</think>\n\nYes."),
        (GEMMA, "<|channel>no name, but an answer that is long", "no name, but an answer that is long"),
    ],
)
def test_a_reply_has_one_section_of_thoughts(names, written, expected):
    assert write(*begin(names), written) == expected


@pytest.mark.parametrize("stop", ["\n\n", "\n", "think"])
def test_stop_strings_are_no_part_of_tags(stop):
    text = write(*begin(HARMONY, stop=(stop, "es.")), f"{ANALYSIS}Hm.{FINAL}Yes.")
    assert text == "<think>\nHm.\n</think>\n\nY"


def test_a_budget_waits_for_the_end_of_a_header():
    reply, tokenizer = begin(HARMONY, think_budget=3)
    forced = tokenizer.encode_rendered(FINAL)
    assert write(reply, tokenizer, f"{ANALYSIS}Hm{FINAL}Yes.") == "<think>\nHm\n</think>\n\nYes."
    assert reply.token_ids.count(forced[0]) == 1


def test_a_budget_ends_thoughts_that_begin_again_and_those_of_plain_tags():
    again = "[THINK]abcx[THINK]xYes."
    assert write(*begin(MISTRAL, think_budget=3), again) == "<think>\nabc\n\n\n</think>\n\nYes."
    plain = "<think>abc" + "x" * len(CLOSING_TEXT) + "Yes."
    assert write(*begin(MISTRAL, think_budget=3), plain) == "<think>abc\n</think>\n\nYes."


@pytest.mark.parametrize("names", [MISTRAL, GEMMA, HARMONY, MUSE, INKLING])
def test_a_reply_goes_on_wherever_it_was_cut(names):
    marks = MarkTokenizer(*names).thought_marks
    tokenizer = MarkTokenizer(*names)
    whole = tokenizer.encode_rendered(f"{marks.opening}Hm.{marks.closing}Yes.")
    for cut in range(len(whole) + 1):
        first, _ = begin(names, max_tokens=cut or 1)
        begun = write(first, tokenizer, whole[:cut]) if cut else ""
        prompt = Prompt([256, *whole[:cut]], begun=whole[:cut])
        second = Reply(prompt, Request(temperature=0.0), tokenizer, frozenset({EOS}))
        for token_id in [*whole[cut:], EOS]:
            second.accept(np.eye(tokenizer.vocab_size, dtype=np.float32)[token_id])
        assert begun + second.text == "<think>\nHm.\n</think>\n\nYes.", cut


@pytest.mark.parametrize("names", [MISTRAL, GEMMA, HARMONY, SOLAR, MUSE, INKLING])
def test_a_saved_reply_is_spelled_as_the_model_has_written_it(names):
    tokenizer = MarkTokenizer(*names)
    marks = tokenizer.thought_marks
    for text, expected in {
        "<think>\nHm": f"{marks.opening}Hm",
        "<think>\nHm.\n</think>\n\nYe": f"{marks.opening}Hm.{marks.closing}Ye",
        "Ye": f"{marks.before_answer}Ye",
    }.items():
        assert Tokenizer.encode_reply(tokenizer, text) == tokenizer.encode_rendered(expected)


def test_calls_that_are_held_may_begin_without_an_end_of_thoughts():
    names = (*GEMMA, "<|tool_call>", "<tool_call|>")
    tokenizer = MarkTokenizer(*names)
    shown = frozenset({VOCAB_SIZE + 2, VOCAB_SIZE + 3})
    choice = ToolChoice((Tool("f", "", {"type": "object", "properties": {}}),), required=True, constrains=True)
    constraint = Constraints(tokenizer, tokenizer.vocab_size, [EOS]).of_calls(known.GEMMA, choice)
    reply, tokenizer = begin(names, constraint=constraint, shown=shown)
    text = write(reply, tokenizer, "<|channel>thought\nHm.<|tool_call>call:f{}<tool_call|>")
    assert text == "<think>\nHm.\n</think>\n\n<|tool_call>call:f{}<tool_call|>"
    assert reply.finish_reason == "stop"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("<think>\n\n</think>\n\nA", "A"),
        ("Hm.\n</think>\n\nA", "T:Hm.;R:Hm.;A"),
        ("The tag <think> is one.", "The tag <think> is one."),
    ],
)
def test_thoughts_that_are_empty_or_that_the_template_began(content, expected):
    template = ChatTemplate(TEMPLATE, MarkTokenizer(*MISTRAL), "template")
    assert template.render([{"role": "assistant", "content": content}], False) == f"<assistant>{expected}"
