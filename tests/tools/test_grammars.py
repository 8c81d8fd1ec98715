"""Grammars of calls: what a model may write in each format, and what it may not."""

import random
import re
from functools import lru_cache

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tools.call_texts import FORMATS, spelled

from tinychat.tools.definitions import Tool, ToolChoice
from tinychat.tools.formats.known import HARMONY, INKLING, MUSE
from tinychat.tools.grammars.markers import TEXT_ONLY, Markers

llguidance = pytest.importorskip("llguidance")

NAMES = [*FORMATS]
# Members of objects may come in any order; of those in tags, only arguments.
ORDERS = {"lfm2": "any", "olmo 3": "any", "gemma 4": "any", "functiongemma": "any"} | dict.fromkeys(
    ["qwen", "minimax", "glm"], "arguments"
)
MARKER = re.compile(r"<[^<>\s]*>|\[[A-Z_]+\]|<\S+(?==)")
EOS, FIRST = 256, 257
NO_FORCING = '\n%llguidance {"no_forcing": true}'


class Vocabulary:
    """All bytes, a stop token, and the control tokens of a format."""

    bos_token_id, eos_token_id = None, EOS

    def __init__(self, control):
        self.tokens = [*(bytes([number]) for number in range(EOS)), b"<eos>", *(text.encode() for text in control)]
        self.special_token_ids = [*range(EOS, len(self.tokens))]
        self.ids = {text: FIRST + number for number, text in enumerate(control)}
        self.markers = Markers({"<eos>": EOS} | self.ids, [EOS])

    def __call__(self, text):
        return []

    def encode(self, text):
        ids, at = [], 0
        pattern = "|".join(map(re.escape, sorted(self.ids, key=len, reverse=True))) or r"\b\B"
        for found in re.finditer(pattern, text):
            ids += [*text[at : found.start()].encode(), self.ids[found[0]]]
            at = found.end()
        return [*ids, *text[at:].encode()]


@lru_cache
def vocabulary(*control):
    found = Vocabulary(control)
    return found, llguidance.LLTokenizer(llguidance.TokenizerWrapper(found), eos_token=[EOS])


class Held:
    """A grammar over a vocabulary, `control` if its markers are control tokens in it."""

    def __init__(self, name, choice, control=False):
        form = FORMATS[name]
        control = ("<other>", *dict.fromkeys(MARKER.findall(form.markers))) if control else ()
        words, tokens = vocabulary(*control)
        self._set(form.grammar(choice, words.markers if control else TEXT_ONLY), words, tokens)

    @classmethod
    def of(cls, lark, words, tokens):
        held = cls.__new__(cls)
        held._set(lark, words, tokens)
        return held

    def _set(self, lark, words, tokens):
        self.words = words
        self.matcher = llguidance.LLMatcher(tokens, lark + NO_FORCING, log_level=0)
        assert not self.matcher.get_error(), self.matcher.get_error()

    def taken(self, text):
        """Return how much of a text the grammar accepts token by token, and whether the reply may end there."""
        matcher, ids = self.matcher.deep_copy(), self.words.encode(text)
        count = matcher.try_consume_tokens(ids)
        return count, count == len(ids) and matcher.is_accepting()

    def accepts(self, text):
        return self.taken(text)[1]

    def refuses_in(self, text, part):
        """Return whether a text is refused before its last `part` is over."""
        before, _, _ = text.rpartition(part)
        return self.taken(text)[0] < len(self.words.encode(before + part))


KEYS = st.sampled_from(["a", "ab", "name", "max_items", "x1"])
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), max_size=12).filter(
    lambda text: not re.search("[<>\\\\'\"]", text)
)
SIMPLE = st.sampled_from(["string", "integer", "number", "boolean", "null"]).map(lambda kind: {"type": kind})
ENUM = st.lists(TEXTS.filter(bool) | st.integers(-5, 99), min_size=1, max_size=3, unique_by=str).map(
    lambda values: {"enum": values}
)
OPTIONAL = st.sampled_from(["string", "integer", "boolean"]).map(lambda kind: {"type": [kind, "null"]})
LEAVES = SIMPLE | ENUM | OPTIONAL


def objects(values):
    return st.dictionaries(KEYS, values, max_size=3).flatmap(
        lambda found: st.sets(st.sampled_from([*found] or [""])).map(
            lambda needed: (
                {"type": "object", "properties": found, "required": sorted(needed & found.keys())}
                | {"additionalProperties": False}
            )
        )
    )


SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: (
        st.builds(lambda items: {"type": "array", "items": items}, inner)
        | objects(inner)
        | st.builds(lambda *parts: {"anyOf": list(parts)}, inner, inner)
    ),
    max_leaves=4,
)
PARAMETERS = objects(SCHEMAS)


def value_of(schema, draw, order):
    """Return a random value that is valid under a schema, members in the `order` of a spelling."""
    inner = order.replace("arguments", "schema")
    if "enum" in schema:
        return draw.choice(schema["enum"])
    if "anyOf" in schema:
        return value_of(draw.choice(schema["anyOf"]), draw, inner)
    kind = schema["type"]
    match draw.choice(kind) if isinstance(kind, list) else kind:
        case "string":
            return "".join(draw.choices("abc ü,:{}[]()=\N{GRINNING FACE}", k=draw.randrange(6)))
        case "integer":
            return draw.randrange(-1000, 1000)
        case "number":
            return draw.choice([0, -1.5, 2.25, 1000])
        case "boolean":
            return draw.random() < 0.5
        case "null":
            return None
        case "array":
            return [value_of(schema["items"], draw, inner) for _ in range(draw.randrange(3))]
    members = [
        (key, value_of(one, draw, inner))
        for key, one in schema["properties"].items()
        if key in schema["required"] or draw.random() < 0.5
    ]
    if order != "schema":
        draw.shuffle(members)
    return dict(members)


@pytest.mark.parametrize("name", NAMES)
@given(schemas=st.lists(PARAMETERS, min_size=25, max_size=25), seed=st.integers(0, 1 << 30))
# Examples of this size take minutes to shrink.
@settings(max_examples=8, deadline=None, phases=[Phase.generate], suppress_health_check=[*HealthCheck])
def test_valid_calls_are_taken_and_others_refused(name, schemas, seed):
    """Hold calls of 200 random schemas, 25 in each choice."""
    form, draw = FORMATS[name], random.Random(seed)
    tools = tuple(Tool(f"tool_{number}", "", schema) for number, schema in enumerate(schemas))
    choice = ToolChoice(tools, required=draw.random() < 0.5, constrains=True)
    held = Held(name, choice, control=draw.random() < 0.5)
    calls = [(tool.name, value_of(tool.parameters, draw, ORDERS.get(name, "schema"))) for tool in tools]
    for call in calls:
        text = spelled(form, [call])
        assert held.accepts(text), text
        assert held.refuses_in(text.replace(call[0], "toll"), "toll"), text
        unknown = spelled(form, [(call[0], call[1] | {"unknown": 1})])
        assert not held.accepts(unknown), unknown
    assert held.accepts(spelled(form, draw.sample(calls, 3)))


WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"enum": ["celsius", "kelvin"]},
        "hours": {"type": "array", "items": {"type": "integer"}},
        "is_long": {"type": "boolean"},
    },
    "required": ["city"],
}
TOOLS = (Tool("weather", "", WEATHER), Tool("clock"))
AUTO = ToolChoice(TOOLS, constrains=True)
VALID = {"city": "Köln", "days": 3, "unit": "kelvin", "hours": [1, 2], "is_long": True}
BONN = [("weather", {"city": "Bonn"})]

every_format = pytest.mark.parametrize("name", NAMES)
both_kinds_of_markers = pytest.mark.parametrize("control", [False, True])


@both_kinds_of_markers
@every_format
def test_arguments_of_a_wrong_type_are_refused(name, control):
    form = FORMATS[name]
    held = Held(name, ToolChoice(TOOLS, required=True), control)
    assert held.accepts(spelled(form, [("weather", VALID)]))
    assert not held.accepts(spelled(form, [("weather", {"days": 3})])), "a required one is missing"
    for key, wrong in [("days", "x"), ("days", 10), ("unit", "ohm"), ("hours", ["a"]), ("hours", 5), ("is_long", 1)]:
        text = spelled(form, [("weather", VALID | {key: wrong})])
        assert not held.accepts(text), text


@both_kinds_of_markers
@every_format
def test_text_is_free_until_a_call_begins(name, control):
    form = FORMATS[name]
    held, call = Held(name, AUTO, control), spelled(form, BONN)
    replies = ["", "Hello <you>!\n", "Hello {}.", call]
    if name == "llama 3":
        replies += ['{"a": 1}', "The tag is\n", f"\n{call}"]
    else:
        replies += [f"Wait: {call}", f"{call}\nDone.", f"A {call} and {call}\n"]
        replies.append(f"<think>So [TOOL or {'it' if control else form.opening}?</think>\n\n{call}")
    for reply in replies:
        assert held.accepts(reply), reply
    if control:
        assert held.accepts("Some <other> token<other>")
    assert not held.accepts(call.replace("weather", "wether"))


@both_kinds_of_markers
@every_format
def test_a_reply_ends_behind_the_only_call(name, control):
    one, two = (spelled(FORMATS[name], BONN * count) for count in (1, 2))
    for required in (False, True):
        held = Held(name, ToolChoice(TOOLS, required=required, is_parallel=False, constrains=True), control)
        assert held.accepts(one)
        assert not held.accepts(two)
        assert not held.accepts(one + " x")


@every_format
def test_a_required_call_has_no_text_before_it_and_names_the_tool_that_is_asked_for(name):
    held = Held(name, ToolChoice(TOOLS, required=True, only="weather", is_parallel=False))
    assert held.accepts(spelled(FORMATS[name], BONN))
    assert not held.accepts(spelled(FORMATS[name], [("clock", {"a": "b"})]))
    assert held.taken("Hello")[0] == 0
    assert not held.accepts("")


@every_format
def test_no_grammar_where_nothing_is_held(name):
    grammar = FORMATS[name].grammar
    assert grammar(ToolChoice(TOOLS)) is None
    assert grammar(ToolChoice(constrains=True)) is None
    assert grammar(ToolChoice((Tool("f", strict=True), Tool("g")))) is not None


@every_format
def test_a_tool_without_a_schema_takes_any_arguments(name):
    text = spelled(FORMATS[name], [("clock", {"zone": "Bonn", "n": "1"})])
    assert Held(name, AUTO).accepts(text), text


TREE = {
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/node"}},
    "required": ["root"],
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "label": {"type": "string"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
            "required": ["label"],
            "additionalProperties": False,
        }
    },
}


@every_format
def test_a_schema_that_contains_itself(name):
    form, held = FORMATS[name], Held(name, ToolChoice((Tool("plant", "", TREE),), constrains=True))
    leaf = {"label": "leaf"}
    assert held.accepts(spelled(form, [("plant", {"root": {"label": "a", "children": [leaf, leaf]}})]))
    assert not held.accepts(spelled(form, [("plant", {"root": {"label": "a", "children": [{"label": 5}]}})]))


@every_format
def test_hundreds_of_tools_and_of_parameters(name):
    wide = {"type": "object", "properties": {f"p{number}": {"type": "integer"} for number in range(80)}}
    tools = tuple(Tool(f"tool_{number}", "", WEATHER) for number in range(150))
    held = Held(name, ToolChoice((*tools, Tool("wide", "", wide)), constrains=True))
    assert held.accepts(spelled(FORMATS[name], [("tool_149", {"city": "Bonn"})]))
    assert held.accepts(spelled(FORMATS[name], [("wide", {"p1": 1, "p79": 2})]))


@every_format
def test_names_and_values_of_another_script(name):
    schema = {"type": "object", "properties": {"größe": {"enum": ["klein", "groß"]}}}
    held = Held(name, ToolChoice((Tool("maß", "", schema),), constrains=True))
    assert held.accepts(spelled(FORMATS[name], [("maß", {"größe": "groß"})]))


def test_a_name_may_be_escaped_in_json():
    held = Held("hermes", ToolChoice((Tool("maß"),), constrains=True))
    assert held.accepts('<tool_call>\n{"name": "ma\\u00df", "arguments": {}}\n</tool_call>')


def test_raw_text_may_have_anything_but_its_end():
    held = Held("qwen", AUTO)
    for city in ("", "\n", "<b>\n</b>", '{"a": "\\n"}', "line\n\nline", "</tool_call>"):
        text = spelled(FORMATS["qwen"], [("weather", {"city": city})])
        assert held.accepts(text), text
    assert held.accepts(spelled(FORMATS["qwen"], [("weather", VALID)]).replace("true", "True"))


def test_a_value_that_may_be_empty_and_one_that_refers_to_itself_without_end():
    schema = {
        "type": "object",
        "properties": {"unit": {"enum": ["", "m"]}, "loop": {"$ref": "#/$defs/loop"}},
        "$defs": {"loop": {"anyOf": [{"$ref": "#/$defs/loop"}, {"$ref": "#/$defs/loop"}]}},
    }
    for name in ("qwen", "glm", "lfm2", "gemma 4"):
        held = Held(name, ToolChoice((Tool("f", "", schema),), constrains=True))
        assert held.accepts(spelled(FORMATS[name], [("f", {"unit": ""})])), name
        assert not held.accepts(spelled(FORMATS[name], [("f", {"unit": "km"})])), name


@every_format
def test_a_string_that_begins_as_one_of_those_that_are_listed(name):
    schema = {"type": "object", "properties": {"unit": {"anyOf": [{"enum": ["meter"]}, {"type": "string"}]}}}
    held = Held(name, ToolChoice((Tool("f", "", schema),), constrains=True))
    for unit in ("meter", "mete", "metric", "meters", ""):
        assert held.accepts(spelled(FORMATS[name], [("f", {"unit": unit})])), unit


def test_strings_of_python_are_escaped():
    held = Held("lfm2", AUTO)
    call = "<|tool_call_start|>[weather(city={})]<|tool_call_end|>".format
    for city in ("'It\\'s'", '"It\'s"', r'"\u00fc\n\x41"', "''", "'ü'"):
        assert held.accepts(call(city)), city
    for city in ("'It's'", '"a\nb"', "Bonn", r'"\q"', "5", "None"):
        assert not held.accepts(call(city)), city


def test_a_string_with_a_pattern_is_held_to_it_in_python_too():
    schema = {"type": "object", "properties": {"code": {"type": "string", "pattern": "^[A-Z]{3}$"}}}
    held = Held("lfm2", ToolChoice((Tool("f", "", schema),), constrains=True))
    call = '<|tool_call_start|>[f(code="{}")]<|tool_call_end|>'.format
    assert held.accepts(call("ABC"))
    assert not held.accepts(call("abc"))


def test_unknown_keywords_of_a_schema_are_left_out_but_for_a_strict_tool():
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    assert Held("hermes", ToolChoice((Tool("f", "", schema),), constrains=True))
    with pytest.raises(AssertionError, match="uniqueItems"):
        Held("hermes", ToolChoice((Tool("f", "", schema, strict=True),)))


HARMONY_MARKERS = ("<|channel|>", "<|constrain|>", "<|message|>", "<|start|>", "<|end|>")


@both_kinds_of_markers
def test_messages_of_harmony(control):
    words, tokens = vocabulary(*(HARMONY_MARKERS if control else ()))
    say = "<|channel|>{}<|message|>{}".format
    thought = say("analysis", "Do I call?") + "<|end|><|start|>assistant"
    late = '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Bonn"}'
    early = ' to=functions.weather<|channel|>commentary json<|message|>{"city": "Bonn"}'
    answers, calls = [say("final", "Hello."), thought + say("final", "{}")], [late, early, thought + late]
    for required in (False, True):
        held = Held.of(HARMONY.grammar(ToolChoice(TOOLS, required, constrains=True), words.markers), words, tokens)
        assert all(map(held.accepts, calls))
        assert [held.accepts(answer) for answer in answers] == [not required] * 2
        for wrong in (late.replace("weather", "wether"), early.replace('"Bonn"', "5"), "Hello", late + "<|end|>"):
            assert not held.accepts(wrong), wrong
    assert HARMONY.grammar(ToolChoice(TOOLS)) is None
    choice = ToolChoice(TOOLS, required=True, thinks=False)
    held = Held.of(HARMONY.grammar(choice, words.markers), words, tokens)
    commentary = say("commentary", "I look.") + "<|end|><|start|>assistant"
    assert [held.accepts(text) for text in (late, commentary + late, thought + late)] == [True, True, False]


MUSE_MARKERS = ("<|message|>", "<|start|>", "<|eom|>")
MUSE_CALL = """ to=weather<|message|><atem:function_calls>
<atem:invoke name="weather">
<atem:parameter name="city">Bonn</atem:parameter>
</atem:invoke>
</atem:function_calls>"""


@both_kinds_of_markers
def test_messages_of_muse(control):
    words, tokens = vocabulary(*(MUSE_MARKERS if control else ()))
    following = "<|eom|><|start|>assistant"
    thought, said = f" to=self<|message|>Do I call?{following}", f" to=user<|message|>I look.{following}"
    answers = [" to=user<|message|>Hello.", f"{thought} to=user<|message|><atem:invoke>"]
    calls = [MUSE_CALL, thought + MUSE_CALL, thought + thought + MUSE_CALL]
    twice = f"{MUSE_CALL}{following}{MUSE_CALL}"
    for required in (False, True):
        for parallel in (False, True):
            choice = ToolChoice(TOOLS, required, is_parallel=parallel, constrains=True)
            held = Held.of(MUSE.grammar(choice, words.markers), words, tokens)
            assert all(map(held.accepts, calls))
            assert held.accepts(twice) == parallel
            assert held.accepts(thought + said + MUSE_CALL) == (not required)
            assert [held.accepts(answer) for answer in answers] == [not required] * 2
            for wrong in (MUSE_CALL.replace("weather", "wether"), MUSE_CALL.replace("city", "town"), "Hello", thought):
                assert not held.accepts(wrong), wrong
    for required in (False, True):
        choice = ToolChoice(TOOLS, required, constrains=True, thinks=False)
        held = Held.of(MUSE.grammar(choice, words.markers), words, tokens)
        texts = MUSE_CALL, said + MUSE_CALL, thought + MUSE_CALL
        assert [held.accepts(text) for text in texts] == [True, not required, False]


INKLING_MARKERS = (
    "<|message_model|>",
    "<|end_message|>",
    "<|content_text|>",
    "<|content_thinking|>",
    "<|content_invoke_tool_json|>",
)
INKLING_CALL = 'weather<|content_invoke_tool_json|>{"name":"weather","args":{"city":"Bonn"}}'


@both_kinds_of_markers
def test_messages_of_inkling(control):
    words, tokens = vocabulary(*(INKLING_MARKERS if control else ()))
    end, following = "<|end_message|>", "<|end_message|><|message_model|>"
    thought, said = f"<|content_thinking|>Do I call?{following}", f"<|content_text|>I look.{following}"
    # As text, the end of the answer begins another message.
    answers = [f"<|content_text|>Hello.{end * control}", f'{thought}<|content_text|>{{"name":"weather"}}']
    calls = [INKLING_CALL, INKLING_CALL + end, thought + INKLING_CALL, thought + thought + INKLING_CALL]
    wrongs = INKLING_CALL.replace("weather<", "wether<"), INKLING_CALL.replace('"weather"', '"clock"')
    wrongs += INKLING_CALL.replace("city", "town"), INKLING_CALL.replace('"Bonn"', "5"), "Hello", thought
    for required in (False, True):
        for parallel in (False, True):
            choice = ToolChoice(TOOLS, required, is_parallel=parallel, constrains=True)
            held = Held.of(INKLING.grammar(choice, words.markers), words, tokens)
            assert all(map(held.accepts, calls))
            assert held.accepts(f"{INKLING_CALL}{following}{INKLING_CALL}{end}") == parallel
            assert held.accepts(thought + said + INKLING_CALL) == (not required)
            assert [held.accepts(answer) for answer in answers] == [not required] * 2
            for wrong in wrongs:
                assert not held.accepts(wrong), wrong
    for required in (False, True):
        choice = ToolChoice(TOOLS, required, only="weather" if required else None, constrains=True, thinks=False)
        held = Held.of(INKLING.grammar(choice, words.markers), words, tokens)
        texts = INKLING_CALL, said + INKLING_CALL, thought + INKLING_CALL, INKLING_CALL.replace("weather", "clock")
        assert [held.accepts(text) for text in texts] == [True, not required, False, not required]
    strict = ToolChoice((Tool("weather", "", WEATHER, strict=True), Tool("clock")))
    held = Held.of(INKLING.grammar(strict, words.markers), words, tokens)
    assert [held.accepts(INKLING_CALL), held.accepts(INKLING_CALL.replace("city", "town"))] == [True, False]
    assert INKLING.grammar(ToolChoice(TOOLS)) is None
