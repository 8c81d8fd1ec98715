"""Drafts by EAGLE-3: its arithmetic, replies that stay the same, and what is refused."""

import json

import eagles
import engines
import families
import numpy as np
import pytest
import reference
from generate.test_draft_model import SAMPLED, check_agreement, check_conversation, written
from generate.test_drafter_drafts import CheapDrafter
from generate.test_driver import CONTEXT, draw_prompts, reply_to, small_engine
from generate.test_driver import written as write_all
from safetensors.numpy import load_file, save_file

import tinychat
from tinychat.conversion.convert import convert
from tinychat.engine.sequence import new_sequence
from tinychat.errors import CheckpointError, DrafterError, FieldError, ModelFolderError, UnsupportedModelError
from tinychat.generate.driver import Driver
from tinychat.generate.eagle_drafts import EagleDrafts, EagleText
from tinychat.models.architectures import parse_config
from tinychat.models.folder import WEIGHTS

# By name: the larger model, and what the drafter's file says.
KINDS = {
    "llama3": ("llama3", {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 0]}}),
    "qwen3": (
        "qwen3-window",
        {"norm_before_residual": True, "eagle_aux_hidden_state_layer_ids": [0, 3], "fc_norm": True},
    ),
    "gpt-oss": ("gpt-oss", {"norm_before_fc": True, "norm_output": True, "draft_vocab_size": 517}),
    "qwen3.5": ("qwen3.5", {"eagle_aux_hidden_state_layer_ids": [2, 3, 1, 4]}),
}
LAYERS = {"llama3": (2, 3, 1), "qwen3": (0, 3), "gpt-oss": (2, 1, 0), "qwen3.5": (2, 3, 1, 4)}


def config_of(kind):
    name, changed = KINDS[kind]
    raw = eagles.config_of(name, **changed)
    return eagles.as_speculator(raw | changed, "qwen3") if kind == "qwen3" else raw


@pytest.fixture(scope="module")
def made(tmp_path_factory, folders):
    """Return model folder, drafter's folder and weights by kind."""
    folder, found = tmp_path_factory.mktemp("eagles"), {}
    for kind, (name, _) in KINDS.items():
        weights = eagles.draw(config_of(kind))
        checkpoint = eagles.write_checkpoint(folder / f"{kind}-checkpoint", config_of(kind), weights, kind == "qwen3")
        found[kind] = folders(name, "f32"), convert(checkpoint, folder / kind, "f32"), weights
    return found


class CheapEagle(CheapDrafter, EagleDrafts):
    """Drafts of EAGLE-3 whose measured times do not count."""


def states_of(engine, text, ids):
    """Run ids from the beginning, and let a text follow them."""
    main = new_sequence(engine, CONTEXT)
    for start in range(0, len(ids), engine.chunk_size):
        part = ids[start : start + engine.chunk_size]
        main.step(part)
        text.follow(start, engine.kept_states(0, len(part)), main.cache)
    return main


@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_states_are_those_of_the_formulas(made, kind):
    folder, drafter, weights = made[kind]
    # Keys and values as they are computed.
    engine = engines.open_engine(folder, threads=2, kv="f32")
    drafts = CheapEagle(engine, drafter)
    own, larger = drafts._sequence.engine, families.make_weights(families.BY_NAME[KINDS[kind][0]])
    config = own.config
    assert config.eagle.layers == LAYERS[kind]
    (ids,) = draw_prompts(engine, [200])
    text, streams = drafts.new_text(), []
    states_of(engine, text, ids)
    reference.decoder_states(engine.config, larger, ids, streams=streams)
    expected = np.stack([streams[layer] for layer in config.eagle.layers], axis=1)
    kept = engine.kept_states(0, 200).reshape(expected.shape)
    assert np.abs(kept - expected).max() < 1e-4 * np.abs(expected).max()
    embedding = larger["model.embed_tokens.weight"].astype(np.float64)[ids[1:]]
    hidden = reference.eagle_states(config, weights, expected[:-1])
    found, (wanted, states) = [], reference.eagle(config, weights, embedding, hidden)
    for start, stop in ((0, 1), (1, 3), (3, 20), (20, 199)):
        chunk = text.sequence.chunk(ids[1 + start : 1 + stop], stop, stop - start)
        found.append(own.run([chunk._replace(hidden=text.states.read(start, stop - start))])[0].copy())
        made_states = own.last_states(0, stop - start)
        assert np.abs(made_states - states[start:stop]).max() < 1e-3 * np.abs(states).max()
    assert np.abs(np.concatenate(found) - wanted).max() < 1e-3 * np.abs(wanted).max()
    # A draft goes on from states of its own.
    state, token_id = made_states[-1], int(wanted[-1].argmax())
    for _ in range(3):
        embedding = np.concatenate([embedding, larger["model.embed_tokens.weight"][[token_id]]])
        hidden = np.concatenate([hidden, state[None]])
        chunk = text.sequence.chunk([token_id], len(text.sequence.ids) + 1)
        (logits,) = own.run([chunk._replace(hidden=state[None])])
        wanted, states = reference.eagle(config, weights, embedding, hidden)
        state, token_id = own.last_states(0, 1)[0], int(wanted[-1].argmax())
        assert np.abs(logits[0] - wanted[-1]).max() < 1e-3 * np.abs(wanted[-1]).max()
        assert np.abs(state - states[-1]).max() < 1e-3 * np.abs(states[-1]).max()


def check_first(engine, drafts):
    """Return whether all first proposals are those of a drafter that reads each whole text anew."""
    return all(first_of(engine, drafts, ids) == token_id for ids, token_id in drafts.first.items())


def first_of(engine, drafts, ids):
    """Return the id that a drafter proposes first behind a text of which it has seen all."""
    text = EagleText(drafts._sequence.another(), drafts._eagle, drafts._gains)
    states_of(engine, text, ids[:-1])
    own, sequence = drafts._sequence.engine, text.sequence
    chunk = sequence.chunk(list(ids[1:]), len(ids) - 1)
    rows = own.run([chunk._replace(hidden=text.states.read(0, len(ids) - 1))])[0]
    return int(rows[-1].argmax())


@pytest.mark.parametrize("fields", [{"temperature": 0.0}, SAMPLED])
@pytest.mark.parametrize("kind", KINDS)
def test_replies_are_the_same(made, kind, fields):
    folder, drafter, _ = made[kind]
    engine = small_engine(folder, 40)
    for length in (1, 9, 190, 300):
        (prompt,) = draw_prompts(engine, [length])
        # First, since of a prompt that is cached the drafter does not see the hidden states.
        drafts = CheapEagle(engine, drafter)
        reply, alone = (written(engine, each, prompt, **fields) for each in (drafts, None))
        assert reply.token_ids == alone.token_ids
        scored = [[token for delta in one.reply._deltas for token in delta.logprobs] for one in (reply, alone)]
        assert scored[0] == scored[1]
        assert drafts.first
        # Of a longer prompt, the drafter reads but the end.
        if fields is not SAMPLED and length < CONTEXT // 2:
            assert check_first(engine, drafts)


def test_replies_at_once(made):
    folder, drafter, _ = made["llama3"]
    engine = small_engine(folder, 60)
    prompts = draw_prompts(engine, (1, 9, 63, 64, 130, 300))
    fields = [{}, SAMPLED] * 3
    alone = [written(engine, None, ids, **{"max_tokens": 12} | each).token_ids for ids, each in zip(prompts, fields)]
    driver = Driver(new_sequence(engine, CONTEXT), CheapEagle(engine, drafter))
    replies = [reply_to(ids, max_tokens=12, **each) for ids, each in zip(prompts, fields)]
    write_all(driver, replies)
    assert [reply.token_ids for reply in replies] == alone
    assert len(driver.drafts.first) > 3


def test_a_conversation_goes_on(made):
    folder, drafter, _ = made["qwen3"]
    engine = small_engine(folder, 40)
    check_conversation(engine, CheapEagle(engine, drafter), check_first)


def agreeing(folder):
    """Write a model that always writes 17 times the last id, and EAGLE-3 that does so, too; return both folders."""
    checkpoint = families.write_checkpoint(families.BY_NAME["llama3"], folder / "model-checkpoint")
    raw = json.loads((checkpoint / "config.json").read_text()) | {"tie_word_embeddings": False}
    (checkpoint / "config.json").write_text(json.dumps(raw))
    weights = {name: values.astype(np.float32) for name, values in load_file(checkpoint / WEIGHTS).items()}
    for name in weights:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weights[name] *= 0
    V, D = raw["vocab_size"], raw["hidden_size"]
    rows = np.random.default_rng(2).normal(0, 1, (V, D)).astype(np.float32)
    output = np.empty_like(rows)
    output[np.arange(V) * 17 % V] = rows
    unit = {"model.norm.weight": np.ones(D, np.float32)}
    save_file(weights | unit | {"model.embed_tokens.weight": rows, "lm_head.weight": output}, checkpoint / WEIGHTS)
    # Each head of the drafter finds the token's own key, whose value is its embedding: the next id follows from it.
    own = eagles.config_of("llama3", draft_vocab_size=V, norm_output=True, num_attention_heads=4, num_key_value_heads=4)
    drawn = eagles.draw(own)
    for name in drawn:
        drawn[name] = np.ones_like(drawn[name]) if name.endswith("norm.weight") else np.zeros_like(drawn[name])
    for name, factor in (("q", 8), ("k", 8), ("v", 1), ("o", 10)):
        drawn[f"midlayer.self_attn.{name}_proj.weight"][:, :D] = factor * np.eye(D)
    drawn["lm_head.weight"] = output
    drafter = eagles.write_checkpoint(folder / "drafter-checkpoint", own, drawn)
    return convert(checkpoint, folder / "model", "f32"), convert(drafter, folder / "drafter", "f32")


def test_a_drafter_that_agrees_is_right(tmp_path):
    folder, drafter = agreeing(tmp_path)
    engine = small_engine(folder, 40)
    drafts = CheapEagle(engine, drafter)
    check_agreement(engine, drafts)


@pytest.mark.parametrize("quant", [None, "int4"])
def test_a_drafter_is_converted_and_used(made, folders, tmp_path, quant):
    checkpoint = eagles.write_checkpoint(tmp_path / "checkpoint", config_of("qwen3"), made["qwen3"][2], True)
    drafter = tinychat.convert(checkpoint, tmp_path / "drafter", quant=quant)
    description = json.loads((drafter / "tinychat.json").read_text())
    assert description["quantization"]["method"] == (quant or "int8")
    folder = folders("qwen3-window", "int4")
    model, alone = (
        tinychat.load(folder, context=CONTEXT, threads=1, kv="int8", draft=draft) for draft in (drafter, False)
    )
    assert isinstance(model.driver.drafts, EagleDrafts)
    (prompt,) = draw_prompts(model.engine, [40])
    assert model.generate(prompt, max_tokens=20) == alone.generate(prompt, max_tokens=20)
    model.sequence = model.sequence.on_changed_engine(kv="f32")
    assert model.generate(prompt, max_tokens=20)
    drafts = model.driver.drafts
    exact = CheapEagle(model.engine, made["qwen3"][1])
    likeness = []
    for one in (drafts, exact):
        text = one.new_text()
        states_of(model.engine, text, prompt[:-1])
        chunk = text.sequence.chunk(prompt[1:], len(prompt) - 1, 1)
        likeness.append(one._sequence.engine.run([chunk._replace(hidden=text.states.read(0, len(prompt) - 1))])[0][0])
    assert np.corrcoef(*likeness)[0, 1] > 0.9


@pytest.mark.live
def test_a_file_that_torch_wrote(made, tmp_path):
    torch = pytest.importorskip("torch")
    checkpoint = eagles.write_checkpoint(tmp_path / "checkpoint", config_of("llama3"), made["llama3"][2])
    (checkpoint / WEIGHTS).unlink()
    tensors = {name: torch.from_numpy(np.array(values)) for name, values in made["llama3"][2].items()}
    torch.save(tensors, checkpoint / "pytorch_model.bin")
    drafter = convert(checkpoint, tmp_path / "drafter", "f32")
    assert (drafter / WEIGHTS).read_bytes() == (made["llama3"][1] / WEIGHTS).read_bytes()


def test_a_drafter_alone_is_refused(made):
    with pytest.raises(DrafterError, match=r"^llama3 is a drafter, which only writes drafts for a larger model"):
        tinychat.load(made["llama3"][1])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"hidden_size": 80}, "that is for a model with hidden_size 80, not 96"),
        ({"vocab_size": 500}, "that is for a model with vocab_size 500, not 517"),
        (
            {"eagle_aux_hidden_state_layer_ids": [2, 4]},
            r"that is for a model whose hidden states before layers \(2, 4\) are there",
        ),
    ],
)
def test_a_drafter_of_another_model_is_refused(made, tmp_path, changed, message):
    raw = eagles.config_of("llama3", **changed)
    other = convert(eagles.write_checkpoint(tmp_path / "checkpoint", raw, eagles.draw(raw)), tmp_path / "other", "f32")
    with pytest.raises(
        FieldError, match=rf"^draft must be a drafter for {made['llama3'][0].name}, unlike other: {message}$"
    ):
        tinychat.load(made["llama3"][0], context=CONTEXT, threads=1, draft=other)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"num_hidden_layers": 2}, UnsupportedModelError, "EAGLE-3 with 2 layers is not supported"),
        ({"model_type": "deepseek_v3"}, UnsupportedModelError, "EAGLE-3 with layers of 'deepseek_v3' is not supported"),
        ({"attention_bias": True}, UnsupportedModelError, "EAGLE-3 with attention_bias is not supported"),
        ({"target_hidden_size": 128}, UnsupportedModelError, "EAGLE-3 of another hidden_size than its model"),
        ({"draft_vocab_size": 518}, CheckpointError, "draft_vocab_size is 518; expected"),
        ({"eagle_aux_hidden_state_layer_ids": [1]}, CheckpointError, "expected a list of 2 to 8 different layers"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 2]}, CheckpointError, "expected a list of 2 to 8 different layers"),
        ({"eagle_aux_hidden_state_layer_ids": [2, "3"]}, CheckpointError, "expected a list of 2 to 8 different layers"),
    ],
)
def test_configurations_that_are_refused(changed, error, message):
    with pytest.raises(error, match=message):
        parse_config(eagles.config_of("llama3", **changed), "config.json")


def test_ids_beyond_the_vocabulary_are_refused(made, tmp_path):
    weights = made["llama3"][2] | {"d2t": np.full(eagles.FREQUENT, 400)}
    checkpoint = eagles.write_checkpoint(tmp_path / "checkpoint", config_of("llama3"), weights)
    drafter = convert(checkpoint, tmp_path / "drafter", "f32")
    with pytest.raises(ModelFolderError, match=r"is damaged \(draft_ids\)"):
        tinychat.load(made["llama3"][0], context=CONTEXT, threads=1, draft=drafter)
