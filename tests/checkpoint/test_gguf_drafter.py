"""GGUF files of Gemma 4's drafters: the same as the checkpoints that they were made from, converted, used, refused."""

import drafters
import gguf
import pytest
from checkpoint.test_gguf import check_same_tensors, differing
from generate.test_drafter_drafts import CONTEXT, draw_prompts, likeness

import tinychat
from tinychat.checkpoint.checkpoint import open_checkpoint
from tinychat.checkpoint.gguf_checkpoint import text_files, unpacked
from tinychat.checkpoint.gguf_file import open_gguf
from tinychat.commands.loading import load_draft, load_model
from tinychat.conversion.convert import convert
from tinychat.errors import CheckpointError, DrafterError
from tinychat.generate.drafter_drafts import DrafterDrafts
from tinychat.models.drafter import is_drafter
from tinychat.settings import LoadSettings


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("name", drafters.VARIANTS)
def test_a_file_is_the_checkpoint_that_it_was_made_from(name, ordered, tmp_path):
    raw, whole = drafters.config_of(name, ordered), drafters.config_of(name)
    weights = drafters.draw(raw)
    # Of clusters, no key tells how many are used.
    expected = open_checkpoint(drafters.write_checkpoint(tmp_path / "checkpoint", whole, weights))
    file = drafters.write_gguf(tmp_path / "drafter.gguf", raw, weights)
    assert ("masked_embd_ordering" in open_gguf(file)[0].tensors) == ordered
    assert text_files(open_gguf(file)).keys() == {"config.json", "generation_config.json"}
    with unpacked(file) as folder:
        found = open_checkpoint(folder)
        assert is_drafter(folder)
        assert not differing(found.config, expected.config)
        assert found.config.drafter.hidden_size == 96
        check_same_tensors(found, expected)


def test_a_file_of_codes_is_converted_and_used(folders, tmp_path):
    # Of columns that make whole blocks.
    raw = drafters.config_of("gemma4", hidden_size=64, intermediate_size=96)
    weights = drafters.draw(raw)
    file = drafters.write_gguf(tmp_path / "drafter.gguf", raw, weights, kind_of=lambda name: "Q8_0")
    checkpoint = drafters.write_checkpoint(tmp_path / "checkpoint", raw, weights)
    model, alone = (
        tinychat.load(folders("gemma4", "f32"), context=CONTEXT, threads=1, kv="f32", draft=draft)
        for draft in (file, False)
    )
    assert isinstance(model.driver.drafts, DrafterDrafts)
    (prompt,) = draw_prompts(model.engine, [40])
    assert model.generate(prompt, max_tokens=20) == alone.generate(prompt, max_tokens=20)
    assert likeness(model, convert(checkpoint, tmp_path / "exact", "f32"), prompt) > 0.99
    with pytest.raises(DrafterError, match=r"^drafter.* is a drafter, which only writes drafts for a larger model"):
        tinychat.load(file)
    # As the option of commands.
    assert is_drafter(load_draft(load_model, str(file), LoadSettings(context=CONTEXT, threads=1)))


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("embedding_length_out", "backbone_hidden_size is missing"),
        ("sliding_window", "sliding_window is missing"),
    ],
)
def test_a_file_without_a_key_is_refused(key, reason, tmp_path, monkeypatch):
    monkeypatch.setattr(gguf.GGUFWriter, f"add_{key}", lambda writer, value: None)
    raw = drafters.config_of("gemma4")
    file = drafters.write_gguf(tmp_path / "drafter.gguf", raw, drafters.draw(raw))
    with pytest.raises(CheckpointError, match=rf"drafter.gguf \(as config.json\): {reason}") as raised:
        tinychat.convert(file, tmp_path / "model")
    assert "\n" not in str(raised.value)
