from dataclasses import replace

import pytest
from fake_loop import FakeLoop, loop_after
from fake_model import ASSISTANT, BOS, USER

from tinychat.chat.draft import Draft
from tinychat.conversation.attachments import Attachment
from tinychat.conversation.messages import SUMMARY_REQUEST
from tinychat.errors import ContextError, SettingError
from tinychat.generate.precedence import SettingsSource, resolve

TWO_TURNS = (("one", "1"), ("two", "2"))


def test_undo_takes_back_several_turns():
    loop = loop_after(*TWO_TURNS, ("three", "3"))
    assert loop.run("/undo 2") == "undone: two"
    assert loop.spoken == ["one", "1"]


@pytest.mark.parametrize(
    ("argument", "complaint"),
    [
        ("0", "'0' is not a whole number of 1 or more"),
        ("x", "is not a whole number of 1 or more"),
        # More digits than Python reads.
        ("1" * 5000, "is not a whole number of 1 or more"),
        ("3", "give a number from 1 to 2"),
    ],
)
def test_undo_of_a_wrong_number_changes_nothing(argument, complaint):
    loop = loop_after(*TWO_TURNS)
    with pytest.raises(SettingError, match=complaint):
        loop.run(f"/undo {argument}")
    assert loop.spoken == ["one", "1", "two", "2"]


def test_compact_shows_the_summary_and_undo_leads_back():
    loop = loop_after(("one" * 60, "1"), ("two" * 60, "2"), ("three", "3"), context_size=1000, chunk_size=1000)
    before = loop.spoken
    said = loop.run("/compact")
    tokens = loop.chat.tokens_in_use()
    assert said == f"a summary replaces 2 turns: {tokens} tokens instead of 377; /undo restores them\nagain"
    assert loop.spoken == [SUMMARY_REQUEST, "again", "three", "3"]
    assert loop.run("/undo") == "restored: the turns of the summary"
    assert loop.spoken == before
    assert loop.run("/redo") == "restored: the summary"
    with pytest.raises(SettingError, match="nothing to summarise before the last 2 of 2 turns"):
        loop.run("/compact 2")
    with pytest.raises(SettingError, match="'x' is not a whole number of 1 or more"):
        loop.run("/compact x")


@pytest.mark.parametrize("command", ["/undo 3", "/edit 3"])
def test_of_a_single_turn_no_range_is_offered(command):
    with pytest.raises(SettingError, match=r"there is only one$"):
        loop_after(TWO_TURNS[0]).run(command)


def test_edit_puts_the_message_into_the_prompt_and_takes_nothing_back():
    loop = loop_after(*TWO_TURNS)
    loop.run("/edit")
    assert loop.draft == Draft("two", replaced=1)
    loop.run("/edit 2")
    assert loop.draft == Draft("one", replaced=2)
    assert loop.spoken == ["one", "1", "two", "2"]
    for wrong in ("/edit 3", "/edit x"):
        with pytest.raises(SettingError, match=r"give a number from 1 to 2|is not a whole number of 1 or more"):
            loop.run(wrong)


def test_an_edited_turn_runs_only_what_is_new():
    loop = loop_after(("a long beginning", "yes"), ("two", "2"))
    assert "".join(delta.text for delta in loop.chat.stream("twi", replaced=1)) == "again"
    summary = loop.chat.summary
    assert summary.prompt_tokens - summary.reused_tokens == len("i") + 1


def test_undo_and_redo_walk_through_all_that_was():
    loop = loop_after(*TWO_TURNS)
    loop.run("/regen")
    list(loop.chat.stream("three", replaced=2))
    states = [["three", "once more"], ["one", "1", "two", "again"], ["one", "1", "two", "2"], ["one", "1"], []]
    said = ["restored: again", "restored: 2", "undone: two", "undone: one"]
    assert loop.spoken == states[0]
    for state, notice in zip(states[1:], said, strict=True):
        assert loop.run("/undo") == notice
        assert loop.spoken == state
    with pytest.raises(SettingError, match="nothing to take back"):
        loop.run("/undo")
    loop.run("/redo 2")
    assert loop.spoken == states[2]
    with pytest.raises(SettingError, match="give a number from 1 to 2"):
        loop.run("/redo 3")
    loop.run("/redo 2")
    assert loop.spoken == states[0]
    with pytest.raises(SettingError, match="nothing to bring back"):
        loop.run("/redo")
    assert loop.run("/undo 4") == "undone: three"
    assert loop.spoken == []


def test_a_new_message_ends_what_can_be_brought_back_and_a_withdrawn_one_does_not():
    loop = loop_after(*TWO_TURNS)
    loop.run("/undo")
    list(loop.chat.stream("three", cancelled=lambda: True))
    loop.run("/redo")
    loop.run("/undo")
    loop.chat.say("three")
    with pytest.raises(SettingError, match="nothing to bring back"):
        loop.run("/redo")
    loop.run("/clear")
    with pytest.raises(SettingError, match="nothing to take back"):
        loop.run("/undo")


def test_retry_samples_differently_once():
    loop = loop_after(*TWO_TURNS)
    seen = []
    reply = loop.chat.model.reply
    loop.chat.model.reply = lambda prompt, request, **calls: seen.append(request) or reply(prompt, request, **calls)
    loop.run("/retry temperature=1.5 top-k=3")
    assert (seen[0].temperature, seen[0].top_k) == (1.5, 3)
    assert loop.spoken[-1] == "again"
    assert (loop.chat.request.temperature, loop.chat.request.top_k) == (0.0, 40)


@pytest.mark.parametrize(("usual", "once"), [(0.0, 1.0), (0.8, 1.0), (1.0, 1.3), (1.5, 1.8)])
def test_a_bare_retry_is_freer_once_and_says_so(usual, once):
    loop = loop_after(*TWO_TURNS)
    loop.chat.request = replace(loop.chat.request, temperature=usual)
    seen = []
    reply = loop.chat.model.reply
    loop.chat.model.reply = lambda prompt, request, **calls: seen.append(request) or reply(prompt, request, **calls)
    assert loop.run("/retry") == f"writing the reply again with temperature={once:g}, this time only"
    assert seen[0].temperature == once
    assert (loop.spoken[-1], loop.chat.request.temperature) == ("again", usual)


def test_a_bare_retry_stays_in_range():
    loop = loop_after(*TWO_TURNS)
    loop.chat.request = replace(loop.chat.request, temperature=100.0)
    assert "temperature=100," in loop.run("/retry")


def test_a_bare_retry_of_nothing_is_an_error_alone():
    loop = FakeLoop()
    with pytest.raises(SettingError, match="no reply yet"):
        loop.run("/retry")
    assert loop.notices == []


@pytest.mark.parametrize(
    ("argument", "complaint"),
    [
        ("temperature", "is no assignment: type KEY=VALUE"),
        ("temprature=1", "unknown setting 'temprature': did you mean temperature?"),
        ("foo=1", "expected one of temperature, top_k, top_p, min_p, repeat_penalty, repeat_last_n"),
        ("temperature=hot", "temperature must be a number, not 'hot'"),
        ("temperature=-1", "must be between 0 and 100"),
        ("max_tokens=3", "max_tokens is not a sampling setting: use /set max_tokens"),
    ],
)
def test_a_wrong_retry_keeps_the_reply(argument, complaint):
    loop = loop_after(*TWO_TURNS)
    with pytest.raises(SettingError) as caught:
        loop.run(f"/retry {argument}")
    assert complaint in str(caught.value)
    assert loop.spoken[-1] == "2"


NO_SWITCH = "the chat template of fake cannot switch thinking on or off; only a limit applies"


@pytest.mark.parametrize(
    ("argument", "shown"),
    [
        ("temperature 0.3", "temperature: 0.3 (was 0.0)"),
        ("temperature 0", "temperature: 0.0 (unchanged)"),
        ("top-k=5", "top_k: 5 (was 40)"),
        ("seed none", "seed: none (unchanged)"),
        ("max_tokens 7", "max_tokens: 7 (was none)"),
        ("overflow shift", "overflow: shift (was stop)"),
        ("stats off", "stats: off (was on)"),
        ("think hide", "think: auto, hidden (was auto)"),
        ("think 200", "think: 200 (was auto)\n" + NO_SWITCH),
        ("think off", "think: off (was auto)\n" + NO_SWITCH),
        ("context 300", "context: 300 (was 256)"),
        ("stop END", "stop: 'END' (was none)"),
        ("stop User:\\n", "stop: 'User:\\n' (was none)"),
        ("stop 'a b' \"it's\"", "stop: 'a b' \"it's\" (was none)"),
        ("stop none", "stop: none (unchanged)"),
        ("stop a=b", "stop: 'a=b' (was none)"),
        ("max_tokens 8k", "max_tokens: 8192 (was none)"),
        ("think 2k", "think: 2048 (was auto)\n" + NO_SWITCH),
        ("temperature = none", "temperature: 0.8 (was 0.0)"),
        ("overflow none", "overflow: drop (was stop)"),
        ("threads 1", "threads: 1 (was 2)"),
        ("threads 2", "threads: 2 (unchanged)"),
        ("threads 64", "threads 64: this process may use 2 cores; using 2\nthreads: 2 (unchanged)"),
        ("share 50%", "share: 50% (was 100%)"),
        ("share none", "share: 100% (unchanged)"),
        ("system Say a=b.", "system: Say a=b. (was none)"),
        ("system none", "system: none (unchanged)"),
    ],
)
def test_set_says_what_has_changed(argument, shown):
    assert FakeLoop().run(f"/set {argument}") == shown


def test_none_brings_back_what_was_before():
    loop = FakeLoop(top_k=7)
    loop.chat.adopt(resolve(SettingsSource("config.toml", {"temperature": 0.3})))
    loop.run("/set temperature 1.5")
    assert loop.run("/set temperature none") == "temperature: 0.3 (was 1.5)"
    assert "temperature     0.3  (config.toml)" in loop.run("/show").splitlines()
    loop.run("/set top_k 3")
    assert loop.run("/set top_k none") == "top_k: 40 (was 3)"
    assert "top_k           40" in loop.run("/show").splitlines()


def test_a_system_prompt_that_was_set_is_that_of_the_conversation():
    loop = FakeLoop("Yes.")
    loop.run("/set system Be kind.")
    assert loop.chat.system == "Be kind."
    assert loop.run("/system") == "system prompt: Be kind."


def test_a_stop_text_that_was_set_ends_replies():
    loop = FakeLoop("One. Two. Three.")
    loop.run("/set stop Two")
    assert loop.chat.say("count") == "One. "


@pytest.mark.parametrize(
    ("argument", "complaint"),
    [
        ("temperature", "temperature needs a value: type /set temperature VALUE"),
        ("temperature 0,5", "temperature must be a number, not '0,5': did you mean 0.5?"),
        ("max_tokens 8,192", "max_tokens must be a whole number or none, not '8,192': did you mean 8192?"),
        ("colour", "unknown setting 'colour'; expected one of temperature"),
        ("colour red", "stop, context, threads, kv, share, draft, system, think, overflow, image_detail, stats"),
        ("thnk hide", "unknown setting 'thnk': did you mean think?"),
        ("temp 1", "unknown setting 'temp': did you mean temperature?"),
        ("top 1", "unknown setting 'top': did you mean top_k or top_p or top_n_sigma?"),
        ('stop "open', 'stop has a quotation mark that is not closed: "open'),
        ('stop ""', "stop must not be empty"),
        ("max_tokens many", "max_tokens must be a whole number or none"),
        ("max_tokens 0", "must be 1 or more"),
        ("overflow spill", "overflow must be one of stop, drop, shift, summarise, not 'spill'"),
        ("think hard", "think must be on, off, auto or a number of tokens, not 'hard'"),
        ("top_k 1.5", "top_k must be a whole number"),
        ("context much", "context must be a whole number of tokens, not 'much'"),
        ("context 0", "context must be between 1 and 1048576, not 0"),
        ("temperature nan", "must be between 0 and 100"),
    ],
)
def test_set_refuses_in_one_line(argument, complaint):
    with pytest.raises(SettingError) as caught:
        FakeLoop().run(f"/set {argument}")
    assert complaint in str(caught.value)


def test_a_conversation_that_outgrows_its_context_goes_on_in_a_larger_one():
    loop = FakeLoop("Yes.", "No.", context_size=24, overflow="stop")
    loop.chat.say("Is it long?")
    with pytest.raises(ContextError):
        loop.chat.say("And is it long now?")
    assert loop.run("/set context 100") == "context: 100 (was 24)"
    assert loop.chat.say("And is it long now?") == "No."
    assert loop.chat.summary.reused_tokens > 0


def test_a_context_beyond_the_training_is_warned_of_once():
    loop = FakeLoop(trained_length=512)
    warning = "the model was trained on 512 tokens at most: in a context of 600 its replies may lose their sense"
    assert warning in loop.run("/set context 600").splitlines()
    assert "trained" not in loop.run("/set context 700")
    assert "trained" not in loop.run("/set context 512")


def test_none_restores_what_the_model_was_loaded_with():
    loop = FakeLoop(context_size=100)
    assert loop.run("/set context none") == "context: 100 (unchanged)"
    loop.run("/set context 50")
    loop.run("/set context 60")
    assert loop.run("/set context none") == "context: 100 (was 60)"
    assert "context         100" in loop.run("/show").splitlines()


def test_none_restores_what_the_command_line_gave():
    loop, opened = FakeLoop(), []
    loop.workspace.models = replace(loop.workspace.models, open_draft=lambda name: opened.append(name))
    loop.chat.model.change_drafts = opened.append
    loop.chat.adopt(resolve(SettingsSource("the command line", {"stats": True, "draft": False, "think": "off"})))
    for name, value, told in (
        ("stats", "off", "stats: on (was off)"),
        ("draft", "on", "draft: "),
        ("think", "on", "think: off (was on)"),
    ):
        loop.run(f"/set {name} {value}")
        assert loop.run(f"/set {name} none").startswith(told)
        assert loop.chat.origins[name] == "the command line"
    assert opened == [True, False]
    assert loop.renderer.show_stats is True


def test_show_tells_all():
    lines = FakeLoop(system="Be kind.", stop="END").run("/show").splitlines()
    assert "model           fake" in lines
    assert "system          Be kind." in lines
    assert "stop            'END'" in lines
    assert "session         not saved yet" in lines


def test_show_leaves_out_what_has_no_effect():
    loop = FakeLoop()
    assert "top_n_sigma" not in loop.run("/show")
    loop.run("/set top_n_sigma 1.5")
    assert "top_n_sigma     1.5  (/set)" in loop.run("/show").splitlines()


def test_multiline_changes_and_changes_back():
    loop = FakeLoop()
    assert "Enter begins a new line" in loop.run("/multiline")
    assert loop.run("/multiline") == "Enter sends"


def test_clear_frees_the_context_keeps_the_cache_and_drops_what_waits():
    loop = FakeLoop("Yes.", context_size=200)
    loop.chat.say("hi")
    loop.chat.attachments = [Attachment("a", "b")]
    loop.run("/clear")
    assert loop.chat.attachments == []
    assert loop.chat.model.sequence.ids == [BOS, USER, *b"hi", ASSISTANT, *b"Yes."]
    assert "context: 0 of 200 tokens" in loop.run("/stats")
    loop.run("/set context 5")
    assert loop.chat.model.context_size == 5


def test_a_seed_is_used_as_it_is_given():
    loop = FakeLoop("a", "b", "c", "d", "e", seed=5)
    seeds = []
    for line in ("one", "two"):
        loop.chat.say(line)
        seeds.append(loop.chat.summary.seed)
    for line in ("/retry seed=47", "/regen"):
        loop.run(line)
        seeds.append(loop.chat.summary.seed)
    loop.run("/set seed 47")
    loop.run("/regen")
    seeds.append(loop.chat.summary.seed)
    assert seeds == [5, 6, 47, 8, 47]


def test_set_kv_takes_the_conversation_to_a_cache_of_another_type():
    loop = loop_after(*TWO_TURNS)
    before = loop.chat.model.sequence.ids
    compiling = "compiling kernels for this setting (once for models of this kind)"
    assert loop.run("/set kv int8").splitlines() == [
        f"{compiling} 0/2",
        f"{compiling} 1/2",
        "kv: int8 (was bf16)",
    ]
    assert (loop.chat.model.sequence.kv, loop.chat.model.sequence.ids) == ("int8", before)
    assert loop.run("/set kv int8") == "kv: int8 (unchanged)"
    assert loop.run("/set kv none").splitlines()[-1] == "kv: bf16 (was int8)"
    loop.run("/set kv int8")
    with pytest.raises(SettingError, match="kv must be one of bf16, f16, int8, f32, not 'int3'"):
        loop.run("/set kv int3")
    assert loop.chat.model.sequence.kv == "int8"
