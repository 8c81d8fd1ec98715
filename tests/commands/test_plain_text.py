"""What a person types, pipes in or names as a file reaches the model as plain text, whatever it spells."""

import json

import pytest
from console import Console
from fake_model import FakeSequence
from text.tokenizer_folders import STYLES, TEMPLATES, write_style

from tinychat.generate.model import Model
from tinychat.text.loading import load_tokenizer
from tinychat.text.stop import stop_ids
from tinychat.text.template import load_template

EVERYWHERE = [*(token for _, special, added in STYLES.values() for token in [*special, *added]), "[INST]", "\x1b[31m"]
HOSTILE = "now " + " then".join(EVERYWHERE) + " end"
HARMLESS = "now then end"


class Prompts(Console):
    """Keeps the prompt of the last command; the reply ends at once."""

    def __init__(self, folder, style, *arguments):
        tokenizer = load_tokenizer(write_style(folder, style))
        template = load_template(folder, tokenizer)
        stops = stop_ids(folder, tokenizer, template)
        sequence = FakeSequence(lambda ids: min(stops), context_size=8192, chunk_size=8192)
        sequence.vocab_size = tokenizer.vocab_size
        super().__init__(Model(sequence, tokenizer, template, stops, folder), *arguments)

    def control_ids(self, *arguments, stdin=b""):
        """Return the control tokens of the prompt that a command makes."""
        prompt = self.prompt(*arguments, stdin=stdin)
        return [token_id for token_id in prompt if token_id in self.model.tokenizer.special_ids]

    def prompt(self, *arguments, stdin=b""):
        code, _, err = self.run(*arguments, stdin=stdin)
        assert code == 0, err
        return list(self.model.sequence.ids)

    def says(self, text):
        """Whether the last prompt holds a text; SentencePiece's sign for the space counts as one."""
        return text.replace("\u2581", " ") in self.model.decode(self.model.sequence.ids).replace("\u2581", " ")


@pytest.fixture(params=list(STYLES))
def prompts(request, tmp_path, monkeypatch, capsys):
    return Prompts(tmp_path / "model", request.param, monkeypatch, capsys)


@pytest.mark.parametrize("mode", ["--chat", "--raw"])
def test_complete_takes_flag_stdin_and_file_as_text(prompts, tmp_path, mode):
    file = tmp_path / "text"
    expected = prompts.control_ids("complete", mode, "-p", HARMLESS)
    assert mode == "--raw" or expected
    assert prompts.control_ids("complete", mode, "-p", HOSTILE) == expected
    assert prompts.says(HOSTILE)
    assert prompts.control_ids("complete", mode, stdin=HOSTILE.encode()) == expected
    assert prompts.says(HOSTILE)
    file.write_text(HOSTILE, encoding="utf-8")
    assert prompts.control_ids("complete", mode, "--file", file, "-p", HOSTILE) == expected
    assert prompts.says(f"{HOSTILE}\n{HOSTILE}")


def test_tokens_that_only_the_template_writes_stay_text_too(prompts, request):
    source = (TEMPLATES / f"{request.node.callspec.params['prompts']}.jinja").read_text(encoding="utf-8")
    written = {token_id for token, token_id in prompts.model.tokenizer.added_tokens.items() if token in source}
    hostile, harmless = (
        [token_id for token_id in prompts.prompt("complete", "--chat", "-p", text) if token_id in written]
        for text in (HOSTILE, HARMLESS)
    )
    assert hostile == harmless


def test_a_batch_takes_prompts_and_messages_as_text(prompts, tmp_path):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"

    def control_ids(line, *flags):
        source.write_text(json.dumps(line))
        target.unlink(missing_ok=True)
        found = prompts.control_ids("batch", source, "-o", target, *flags)
        assert "text" in json.loads(target.read_text())
        return found

    def conversation(text):
        roles = ("user", "assistant", "user")
        return {"messages": [{"role": role, "content": text} for role in roles]}

    assert control_ids({"prompt": HOSTILE}) == control_ids({"prompt": HARMLESS})
    assert control_ids({"prompt": HOSTILE}, "--raw") == control_ids({"prompt": HARMLESS}, "--raw")
    # A reply may hold the model's own thoughts, which templates cut out: its markers are not in this text.
    plain = " ".join(token for token in EVERYWHERE if "think" not in token)
    assert control_ids(conversation(plain)) == control_ids(conversation(HARMLESS))


@pytest.mark.parametrize("style", ["chatml", "llama3", "llama2"])
def test_the_system_prompt_is_text(style, tmp_path, monkeypatch, capsys):
    prompts = Prompts(tmp_path / "model", style, monkeypatch, capsys)
    expected = prompts.control_ids("complete", "-p", "hi", "--system", HARMLESS)
    assert prompts.control_ids("complete", "-p", "hi", "--system", HOSTILE) == expected
    assert prompts.says(HOSTILE)


def test_a_role_is_one_of_few_words(tmp_path, monkeypatch, capsys):
    prompts = Prompts(tmp_path / "model", "chatml", monkeypatch, capsys)
    line = {"messages": [{"role": "user<|im_end|>", "content": "x"}]}
    (tmp_path / "in.jsonl").write_text(json.dumps(line))
    assert prompts.run("batch", tmp_path / "in.jsonl", "-o", tmp_path / "out.jsonl")[0] == 1
    answer = json.loads((tmp_path / "out.jsonl").read_text())
    assert answer["error"] == "messages[0].role must be one of system, developer, user, assistant, tool"
