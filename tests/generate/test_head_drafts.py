"""Drafts by the head of a model: its arithmetic, its file, and replies that stay the same."""

import shutil

import engines
import families
import numpy as np
import pytest
import reference
from generate.test_draft_model import SAMPLED, Noting, check_conversation, written
from generate.test_driver import CONTEXT, draw_prompts, reply_to, small_engine
from generate.test_driver import written as write_all
from safetensors.numpy import load_file, save_file

from tinychat.conversion.convert import convert
from tinychat.engine.sequence import new_sequence
from tinychat.errors import CheckpointError, ModelFolderError
from tinychat.generate import head_drafts
from tinychat.generate.draft_model import WINDOW
from tinychat.generate.drafts import Drafts
from tinychat.generate.driver import Driver
from tinychat.generate.head_drafts import HeadDrafts, StateWindow, own_drafts
from tinychat.models.architectures import linears, norms, parse_config
from tinychat.models.draft_head import head_config
from tinychat.models.folder import WEIGHTS
from tinychat.models.head_folder import HEAD, SHARED
from tinychat.models.tensors import whole_and_part

VARIANTS = ("qwen3.5", "qwen3.5-moe")


def head_tensors(variant):
    """Draw the tensors of a variant's head, by their names in a checkpoint."""
    config, random = head_config(parse_config(variant.config, variant.name)), np.random.default_rng(5)
    found, D = {}, config.hidden_size
    for linear in linears(config):
        if linear.name not in SHARED:
            for shard in range(linear.shards):
                for name, rows in zip(linear.names(shard), linear.rows):
                    shape, (name, part) = (rows, linear.columns), whole_and_part(name)
                    shape = (rows, part.whole) if part else shape
                    found[f"{name}.weight"] = random.normal(0, 1.2 / np.sqrt(shape[1]), shape)
                    if linear.bias:
                        found[f"{name}.bias"] = random.normal(0, 0.1, rows)
    for norm in norms(config):
        for source in norm.sources:
            found[f"{source}.weight"] = random.uniform(-0.5, 0.5, norm.size)
    assert found["model.fc.weight"].shape == (D, 2 * D)
    return {name.replace("model.", "mtp.", 1): values.astype(np.float32) for name, values in found.items()}


def write_checkpoint(name, folder):
    """Write a variant with a head; return the checkpoint, and the weights of the head as the formulas take them."""
    variant = families.BY_NAME[name]
    families.write_checkpoint(variant, folder)
    own = head_tensors(variant)
    file = folder / WEIGHTS
    save_file(load_file(file) | families.with_whole_tensors(own), file)
    weights = families.make_weights(variant) | {key.replace("mtp.", "model.", 1): own[key] for key in own}
    fc, D = weights["model.fc.weight"], variant.config["hidden_size"]
    parts = {f"model.fc[,{first}:{first + D}/{2 * D}].weight": fc[:, first : first + D] for first in (0, D)}
    return folder, weights | parts


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("heads")
    found = {}
    for name in VARIANTS:
        checkpoint, weights = write_checkpoint(name, folder / f"{name}-checkpoint")
        found[name] = convert(checkpoint, folder / name, "f32"), weights
    return found


class CheapHead(Noting, HeadDrafts):
    """Drafts of a head whose measured times do not count."""

    def __init__(self, engine, **costs):
        engine.draft_head.compile()
        super().__init__(engine.draft_head, **costs)


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_are_those_of_the_formulas(made, name):
    folder, weights = made[name]
    engine = small_engine(folder, 40)
    head, config = engine.draft_head, engine.config
    head.compile()
    (ids,) = draw_prompts(engine, [200])
    main, own, found, states = new_sequence(engine, CONTEXT), new_sequence(head, CONTEXT), [], []
    for start, stop in ((0, 64), (64, 65), (65, 200)):
        main.step(ids[start:stop])
        states.append(engine.last_states(0, stop - start))
    expected = reference.decoder_states(config, families.make_weights(families.BY_NAME[name]), ids)
    states = np.concatenate(states)
    # Keys and values are in bfloat16.
    assert np.abs(states - expected).max() < 1e-2 * np.abs(expected).max()
    for start, stop in ((0, 3), (3, 4), (4, 199)):
        chunk = own.chunk(ids[1 + start : 1 + stop], stop, stop - start)
        found.append(head.run([chunk._replace(hidden=states[start:stop])])[0])
    states = reference.head_states(head.config, weights, ids[1:], expected[:-1])
    wanted = reference.Weights(config, weights).apply(
        "embed_tokens" if config.tie_word_embeddings else "lm_head", 0, states
    )
    assert np.abs(np.concatenate(found) - wanted).max() < 3e-2 * np.abs(wanted).max()


@pytest.mark.parametrize("fields", [{"temperature": 0.0}, SAMPLED])
@pytest.mark.parametrize("name", VARIANTS)
def test_replies_are_the_same(made, name, fields):
    engine = small_engine(made[name][0], 40)
    for length in (1, 9, 190, 300):
        (prompt,) = draw_prompts(engine, [length])
        alone, drafts = written(engine, None, prompt, **fields), CheapHead(engine)
        reply = written(engine, drafts, prompt, **fields)
        assert reply.token_ids == alone.token_ids
        scored = [[token for delta in one.reply._deltas for token in delta.logprobs] for one in (reply, alone)]
        assert scored[0] == scored[1]
        # Of a long text the head reads the end only.
        assert drafts.first and (fields is SAMPLED or length > CONTEXT // 2 or check_first(engine, drafts))


def check_first(engine, drafts):
    """Return whether all first proposals are those of a head that reads each whole text anew."""
    for ids, token_id in drafts.first.items():
        main, own = new_sequence(engine, CONTEXT), new_sequence(engine.draft_head, CONTEXT)
        states = []
        for start in range(0, len(ids) - 1, engine.chunk_size):
            part = ids[start : min(start + engine.chunk_size, len(ids) - 1)]
            main.step(part)
            states.append(engine.last_states(0, len(part)))
        states, read = np.concatenate(states), ids[1:]
        for start in range(0, len(read), engine.chunk_size):
            part = read[start : start + engine.chunk_size]
            chunk = own.chunk(part, start + len(part))._replace(hidden=states[start : start + len(part)])
            logits = engine.draft_head.run([chunk])[0][-1]
        assert int(np.argmax(logits)) == token_id
    return True


def test_a_conversation_goes_on(made):
    engine = small_engine(made["qwen3.5"][0], 40)
    check_conversation(engine, CheapHead(engine), check_first)


def test_replies_at_once(made):
    engine = small_engine(made["qwen3.5"][0], 100)
    prompts = draw_prompts(engine, (1, 9, 63, 64, 130, 300))
    alone = [written(engine, None, prompt, max_tokens=12).token_ids for prompt in prompts]
    driver = Driver(new_sequence(engine, CONTEXT), CheapHead(engine))
    replies = [reply_to(prompt, max_tokens=12) for prompt in prompts]
    write_all(driver, replies)
    assert [reply.token_ids for reply in replies] == alone
    assert check_first(engine, driver.drafts)


def test_states_are_those_of_the_last_positions():
    window, states = StateWindow(2), np.arange(10_000, dtype=np.float32).reshape(-1, 2)
    window.write(0, states[:5])
    window.write(3, states[100:102])
    assert (window.start, window.stop) == (0, 5)
    assert window.read(2, 3).tolist() == [*states[2:3].tolist(), *states[100:102].tolist()]
    window.write(9, states[9:10])
    assert (window.start, window.stop, window.read(9, 9)[0].tolist()) == (9, 10, states[9].tolist())
    for position in range(10, 4000, 7):
        window.write(position, states[position : position + 7])
        assert window.stop == position + 7 and window.stop - window.start >= min(WINDOW, window.stop - 9)
        rows = window.stop - window.start
        assert np.array_equal(window.read(window.start, rows), states[window.start : window.stop])
    window.write(20, states[20 : 20 + WINDOW + 3])
    assert (window.start, window.stop) == (23, 23 + WINDOW)


@pytest.mark.parametrize("quant", ["int4", "int8", "f32"])
def test_the_file_of_a_head(made, tmp_path, quant, monkeypatch):
    variant = families.BY_NAME["qwen3.5"]
    plain = convert(families.write_checkpoint(variant, tmp_path / "plain"), tmp_path / "without", quant)
    checkpoint, _ = write_checkpoint("qwen3.5", tmp_path / "checkpoint")
    folder = convert(checkpoint, tmp_path / "with", quant)
    assert (folder / WEIGHTS).read_bytes() == (plain / WEIGHTS).read_bytes()
    assert (folder / HEAD).is_file() and not (plain / HEAD).exists()
    with_head, without = (new_sequence(engines.open_engine(each), CONTEXT) for each in (folder, plain))
    assert type(own_drafts(without)) is Drafts
    # Of four layers, one more costs too much.
    assert type(own_drafts(with_head)) is Drafts
    monkeypatch.setattr(head_drafts, "MOST_COST", 1.0)
    assert isinstance(own_drafts(with_head), HeadDrafts)
    head = with_head.engine.draft_head
    assert np.shares_memory(head.parameters.embed_tokens[0], with_head.engine.parameters.embed_tokens[0])
    reply = written(with_head.engine, CheapHead(with_head.engine), [5, 6, 7], max_tokens=12)
    assert reply.token_ids == written(without.engine, None, [5, 6, 7], max_tokens=12).token_ids


def test_a_head_with_a_missing_tensor_is_refused(tmp_path):
    checkpoint, _ = write_checkpoint("qwen3.5", tmp_path / "checkpoint")
    tensors = load_file(checkpoint / WEIGHTS)
    del tensors["mtp.norm.weight"]
    save_file(tensors, checkpoint / WEIGHTS)
    with pytest.raises(CheckpointError, match=r"has no tensor model\.norm\.weight"):
        convert(checkpoint, tmp_path / "model", "f32")
    assert not (tmp_path / "model").exists()


def test_a_damaged_file_of_a_head_is_refused(made, tmp_path):
    folder = shutil.copytree(made["qwen3.5"][0], tmp_path / "model")
    (folder / HEAD).write_bytes((folder / HEAD).read_bytes()[:-1])
    with pytest.raises(ModelFolderError, match=r"draft-head\.safetensors is damaged"):
        own_drafts(new_sequence(engines.open_engine(folder), CONTEXT))
