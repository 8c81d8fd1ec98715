"""Drafts by a drafter: its arithmetic, replies that stay the same, and what is refused."""

import json
import shutil

import drafters
import engines
import families
import numpy as np
import pytest
import reference
from generate.test_draft_model import SAMPLED, Noting, check_agreement, check_conversation, written
from generate.test_driver import CONTEXT, draw_prompts, reply_to, small_engine
from generate.test_driver import written as write_all
from safetensors.numpy import load_file, save_file

import tinychat
from tinychat.commands.loading import load_draft, load_model
from tinychat.conversion.convert import convert
from tinychat.engine.sequence import Sequence, new_sequence
from tinychat.errors import CheckpointError, DrafterError, FieldError, ModelFolderError, UnsupportedModelError
from tinychat.generate.drafter_drafts import DrafterDrafts
from tinychat.generate.driver import Driver
from tinychat.models.architectures import expected_shapes, parse_config, read_config
from tinychat.models.drafter import ORDERING
from tinychat.models.drafter_folder import open_drafter
from tinychat.models.folder import WEIGHTS
from tinychat.models.tensors import whole_and_part
from tinychat.settings import LoadSettings

ROUNDS = 4


@pytest.fixture(scope="module")
def made(tmp_path_factory, folders):
    """Return model folder, drafter's folder and weights, by variant and whether the output matrix is in clusters."""
    folder, found = tmp_path_factory.mktemp("drafters"), {}
    for name in drafters.VARIANTS:
        for ordered in (False, True):
            raw = drafters.config_of(name, ordered)
            weights = drafters.draw(raw)
            checkpoint = drafters.write_checkpoint(folder / f"{name}-{ordered}-checkpoint", raw, weights)
            found[name, ordered] = (
                folders(name, "f32"),
                convert(checkpoint, folder / f"{name}-{ordered}", "f32"),
                weights,
            )
    return found


def drafter_of(engine, folder):
    own = engine.drafter(open_drafter(folder, engine.config, "model"))
    own.compile()
    return own


def drafted(own, cache, last, state, rounds=ROUNDS):
    """Return the ids of a draft, and logits and state of each round."""
    found, ids = [], []
    for _ in range(rounds):
        chunk = Sequence(own, cache).chunk([last], cache.length + 1)._replace(hidden=state[None])
        logits, state = own.run([chunk])[0][0], own.last_states(0, 1)[0]
        found.append((logits, state))
        last = int(np.argmax(logits))
        ids.append(last)
    return ids, found


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("name", drafters.VARIANTS)
def test_logits_and_states_are_those_of_the_formulas(made, name, ordered):
    folder, drafter, weights = made[name, ordered]
    # Keys and values as they are computed.
    engine = engines.open_engine(folder, threads=2, kv="f32")
    own, config = drafter_of(engine, drafter), engine.config
    larger = families.make_weights(families.BY_NAME[name])
    embedding = config.embedding_multiplier * larger["model.embed_tokens.weight"].astype(np.float64)
    (ids,) = draw_prompts(engine, [200])
    # Alone, within the window and behind it, at the beginning of a block, and in the middle of one.
    for position in (1, 9, 23, 64, 129, 199):
        main, kept = new_sequence(engine, CONTEXT), {}
        main.step(ids[:position])
        state = engine.last_states(position - 1, position)[0]
        expected = reference.decoder_states(config, larger, ids[:position], kept=kept)[-1]
        assert np.abs(state - expected).max() < 1e-4 * np.abs(expected).max()
        narrow = config.cache_shapes[0][0]
        keys = kept[config.cache_layers[narrow - 1]], kept[config.cache_layers[-1]]
        chosen, rounds = drafted(own, main.cache, ids[position], state)
        for last, (logits, state) in zip([ids[position], *chosen], rounds):
            wanted, following = reference.drafted(own.config, weights, embedding[last], expected, keys, position)
            assert np.abs(logits - wanted).max() < 1e-2 * np.abs(wanted).max()
            assert np.abs(state - following).max() < 1e-2 * np.abs(following).max()
            # From where the engine is: differences grow from round to round.
            expected = state.astype(np.float64)
        assert main.ids == ids[:position]


@pytest.mark.live
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("name", drafters.VARIANTS)
def test_logits_and_states_are_those_of_transformers(made, name, ordered, tmp_path):
    torch = pytest.importorskip("torch")
    import transformers
    import transformers_models

    folder, drafter, weights = made[name, ordered]
    checkpoint = drafters.write_checkpoint(tmp_path / "checkpoint", drafters.config_of(name, ordered), weights)
    theirs, report = transformers.Gemma4AssistantForCausalLM.from_pretrained(
        checkpoint, dtype=torch.float32, output_loading_info=True
    )
    assert not any(report.values()), report
    larger = transformers_models.build(families.BY_NAME[name])
    engine = engines.open_engine(folder, threads=2, kv="f32")
    own = drafter_of(engine, drafter)
    (ids,) = draw_prompts(engine, [200])
    for position in (9, 30, 64, 199):
        main = new_sequence(engine, CONTEXT)
        main.step(ids[:position])
        with torch.no_grad():
            run = larger(
                torch.tensor([ids[:position]]), output_hidden_states=True, return_shared_kv_states=True, use_cache=False
            )
        hidden, last = run.hidden_states[-1][:, -1:], ids[position]
        state = hidden[0, 0].numpy()
        for logits, following in drafted(own, main.cache, last, state)[1]:
            with torch.no_grad():
                embedded = larger.get_input_embeddings()(torch.tensor([[last]]))
                out = theirs(
                    inputs_embeds=torch.cat([embedded, hidden], dim=-1),
                    position_ids=torch.tensor([[position]]),
                    shared_kv_states=run.shared_kv_states,
                )
            wanted, expected = out.logits[0, 0].numpy(), out.last_hidden_state[0, 0].numpy()
            assert np.abs(logits - wanted).max() < 1e-2 * np.abs(wanted).max()
            assert np.abs(following - expected).max() < 1e-2 * np.abs(expected).max()
            last, hidden = int(np.argmax(logits)), torch.from_numpy(following)[None, None]


@pytest.mark.live
@pytest.mark.parametrize("kind", ["gemma4", "gemma4_unified"])
def test_a_file_that_transformers_wrote(kind, tmp_path):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    raw = drafters.config_of("gemma4", True)
    architecture = f"{kind.title().replace('_', '')}AssistantForCausalLM"
    raw |= {"architectures": [architecture], "model_type": f"{kind}_assistant"}
    keep = (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "head_dim",
        "global_head_dim",
        "hidden_size_per_layer_input",
    )
    keep += ("vocab_size_per_layer_input",) if kind == "gemma4" else ()
    raw["text_config"] = {key: raw["text_config"][key] for key in keep} | {"model_type": f"{kind}_text"}
    raw |= {"num_centroids": 1024, "backbone_hidden_size": 96}
    theirs = transformers.AutoConfig.for_model(**{k: v for k, v in raw.items() if k != "tie_word_embeddings"})
    theirs.save_pretrained(tmp_path)
    config = read_config(tmp_path / "config.json")
    assert config == parse_config(raw, "config.json")
    assert config.vocab_size == 262144 and config.drafter.clusters.intermediate_size == 256
    with torch.device("meta"):
        model = getattr(transformers, architecture)(theirs)
    names = {*dict(model.named_parameters()), *(name for name, _ in model.named_buffers() if "inv_freq" not in name)}
    ours = {whole_and_part(name)[0] for name, _ in expected_shapes(config) if ".clusters." not in name}
    plain = (f"{ORDERING}.weight", "layer_scalar.weight")
    ours = {name.removesuffix(".weight") if name.endswith(plain) else name for name in ours}
    assert ours | {"model.embed_tokens.weight"} == {name for name in names if "embed_scale" not in name}


class CheapDrafter(Noting, DrafterDrafts):
    """Drafts of a drafter whose measured times do not count."""

    def __init__(self, engine, folder, **costs):
        self._opened = open_drafter(folder, engine.config, "model")
        super().__init__(engine, **costs)

    def parts(self, engine, context):
        return new_sequence(engine, context), self._opened


def check_first(engine, drafts):
    """Return whether all first proposals are those of a drafter beside a fresh run of the text."""
    own = drafts._sequence.engine
    for ids, token_id in drafts.first.items():
        main = new_sequence(engine, CONTEXT)
        for start in range(0, len(ids) - 1, engine.chunk_size):
            part = ids[start : min(start + engine.chunk_size, len(ids) - 1)]
            main.step(part)
            state = engine.last_states(len(part) - 1, len(part))[0]
        assert drafted(own, main.cache, ids[-1], state, 1)[0] == [token_id]
    return True


@pytest.mark.parametrize("fields", [{"temperature": 0.0}, SAMPLED])
@pytest.mark.parametrize(("name", "ordered"), [("gemma4", True), ("gemma4-large", False)])
def test_replies_are_the_same(made, name, ordered, fields):
    folder, drafter, _ = made[name, ordered]
    engine = small_engine(folder, 40)
    for length in (1, 9, 190, 300):
        (prompt,) = draw_prompts(engine, [length])
        alone, drafts = written(engine, None, prompt, **fields), CheapDrafter(engine, drafter)
        reply = written(engine, drafts, prompt, **fields)
        assert reply.token_ids == alone.token_ids
        scored = [[token for delta in one.reply._deltas for token in delta.logprobs] for one in (reply, alone)]
        assert scored[0] == scored[1]
        assert drafts.first and (fields is SAMPLED or check_first(engine, drafts))


def test_a_conversation_goes_on(made):
    folder, drafter, _ = made["gemma4", False]
    engine = small_engine(folder, 40)
    check_conversation(engine, CheapDrafter(engine, drafter), check_first)


@pytest.mark.parametrize("blocks", [100, 12])  # of the latter, not all have room beside each other
def test_replies_at_once(made, blocks):
    folder, drafter, _ = made["gemma4", True]
    engine = small_engine(folder, blocks)
    prompts = draw_prompts(engine, (1, 9, 63, 64, 130, 300))
    fields = [{}, SAMPLED] * 3
    alone = [written(engine, None, ids, **{"max_tokens": 12} | each).token_ids for ids, each in zip(prompts, fields)]
    driver = Driver(new_sequence(engine, CONTEXT), CheapDrafter(engine, drafter))
    replies = [reply_to(ids, max_tokens=12, **each) for ids, each in zip(prompts, fields)]
    write_all(driver, replies)
    assert [reply.token_ids for reply in replies] == alone
    driver.drafts.first = {ids: first for ids, first in driver.drafts.first.items() if len(set(ids)) > 1}
    assert len(driver.drafts.first) > 3


def test_a_draft_has_the_same_bits_beside_others_and_on_other_threads(made):
    folder, drafter, _ = made["gemma4", True]
    found = []
    for threads in (1, 2):
        engine = engines.open_engine(folder, threads=threads)
        own, (ids,) = drafter_of(engine, drafter), draw_prompts(engine, [200])
        sequences, states = [], []
        for position in (2, 70, 199):
            sequences.append(new_sequence(engine, CONTEXT))
            sequences[-1].step(ids[:position])
            states.append(engine.last_states(position - 1, position)[0])
        chunks = [
            Sequence(own, main.cache).chunk([7], 200)._replace(hidden=state[None])
            for main, state in zip(sequences, states)
        ]
        together = [row[0].tobytes() for row in own.run(chunks)]
        made_states = own.last_states(0, len(chunks))
        for chunk, logits, state in zip(chunks, together, made_states):
            assert own.run([chunk])[0].tobytes() == logits
            assert own.last_states(0, 1)[0].tobytes() == state.tobytes()
        found.append((together, made_states.tobytes()))
    assert found[0] == found[1]


def agreeing(folder):
    """Write a model that always writes 17 times the last id, and a drafter that does so, too; return both folders."""
    checkpoint = families.write_checkpoint(families.BY_NAME["gemma4"], folder / "model-checkpoint")
    # Capped, the largest would be alike.
    changed = {"tie_word_embeddings": False, "final_logit_softcapping": None}
    raw = json.loads((checkpoint / "config.json").read_text()) | changed
    (checkpoint / "config.json").write_text(json.dumps(raw))
    weights = {name: values.astype(np.float32) for name, values in load_file(checkpoint / WEIGHTS).items()}
    for name in weights:
        if any(part in name for part in ("o_proj", "down_proj", "per_layer_projection.")):
            weights[name] *= 0
        if name.endswith(("layer_scalar", "model.norm.weight")):
            weights[name] = np.ones_like(weights[name])
    V, D = raw["vocab_size"], raw["hidden_size"]
    rows = np.random.default_rng(2).normal(0, 1, (V, D)).astype(np.float32)
    output = np.empty_like(rows)
    output[np.arange(V) * 17 % V] = rows
    save_file(weights | {"model.embed_tokens.weight": rows, "lm_head.weight": output}, checkpoint / WEIGHTS)
    own = drafters.config_of("gemma4", True, hidden_size=D)
    drawn = drafters.draw(own)
    for name in drawn:
        if any(part in name for part in ("o_proj", "down_proj", f"pre_projection[,{D}:")):
            drawn[name] *= 0
        if name.endswith(("layer_scalar.weight", "model.norm.weight")):
            drawn[name] = np.ones_like(drawn[name])
    drawn[f"pre_projection[,0:{D}/{2 * D}].weight"] = np.eye(D, dtype=np.float32)
    drawn["model.embed_tokens.weight"] = output
    clusters = np.arange(V).reshape(drafters.CLUSTERS, -1)
    drawn[f"masked_embedding.{ORDERING}.weight"] = clusters.reshape(-1)
    drawn["masked_embedding.centroids.weight"] = np.array([output[ids].sum(axis=0) for ids in clusters])
    drafter = drafters.write_checkpoint(folder / "drafter-checkpoint", own, drawn)
    return convert(checkpoint, folder / "model", "f32"), convert(drafter, folder / "drafter", "f32")


def test_a_drafter_that_agrees_is_right(tmp_path):
    folder, drafter = agreeing(tmp_path)
    engine = small_engine(folder, 40)
    drafts = CheapDrafter(engine, drafter)
    check_agreement(engine, drafts)
    # It reads what the model has cached, and has no blocks of its own.
    assert drafts._sequence.engine.pool is engine.pool


def test_another_type_of_cache(made):
    folder, drafter, _ = made["gemma4", False]
    plain, model = (
        tinychat.load(folder, context=CONTEXT, threads=1, kv="bf16", draft=draft) for draft in (False, drafter)
    )
    assert model.draft == drafter.name
    for one in (plain, model):
        one.sequence = one.sequence.on_changed_engine(kv="f32")
    assert model.driver.drafts._sequence.engine.pool is model.engine.pool
    (prompt,) = draw_prompts(model.engine, [40])
    assert model.generate(prompt, max_tokens=20) == plain.generate(prompt, max_tokens=20)


def likeness(model, exact, prompt):
    """Return the correlation of a state of a model's drafter with that of the same in float32, in a folder."""
    own, main = model.driver.drafts._sequence.engine, new_sequence(model.engine, CONTEXT)
    main.step(prompt[:-1])
    state = model.engine.last_states(len(prompt) - 2, len(prompt) - 1)[0]
    states = [drafted(one, main.cache, prompt[-1], state, 1)[1][0][1] for one in (own, drafter_of(model.engine, exact))]
    return np.corrcoef(*states)[0, 1]


# Beside models of other weights, whose embeddings it reads, and other caches.
@pytest.mark.parametrize(("quant", "of_model", "kv"), [(None, "int4", "int8"), ("int4", "f32", "bf16")])
def test_a_drafter_is_converted_and_used(made, folders, tmp_path, quant, of_model, kv):
    folder, weights = folders("gemma4", of_model), made["gemma4", True][2]
    checkpoint = drafters.write_checkpoint(tmp_path / "checkpoint", drafters.config_of("gemma4", True), weights)
    drafter = tinychat.convert(checkpoint, tmp_path / "drafter", quant=quant)
    description = json.loads((drafter / "tinychat.json").read_text())
    assert description["quantization"]["method"] == (quant or "int8")
    model, alone = (tinychat.load(folder, context=CONTEXT, threads=1, kv=kv, draft=draft) for draft in (drafter, False))
    assert isinstance(model.driver.drafts, DrafterDrafts)
    (prompt,) = draw_prompts(model.engine, [40])
    assert model.generate(prompt, max_tokens=20) == alone.generate(prompt, max_tokens=20)
    # What it reads is what the model has, as far as eight bits, or four, tell.
    assert likeness(model, made["gemma4", True][1], prompt) > 0.9


def test_commands_take_a_drafter(made):
    folder, drafter, _ = made["gemma4", False]
    settings = LoadSettings(context=CONTEXT, threads=1, kv="bf16", draft=str(drafter))
    model = load_model(str(folder), settings)
    assert isinstance(model.driver.drafts, DrafterDrafts)
    # As a chat does that changes it.
    model.change_drafts(False)
    model.change_drafts(load_draft(load_model, str(drafter), settings))
    assert isinstance(model.driver.drafts, DrafterDrafts)
    assert model.draft == drafter.name


def test_a_drafter_alone_is_refused(made):
    _, drafter, _ = made["gemma4", False]
    with pytest.raises(DrafterError, match=r"^gemma4-False is a drafter, which only writes drafts for a larger model"):
        tinychat.load(drafter)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"backbone_hidden_size": 80}, "that is for a model with hidden_size 80, not 96"),
        ({"vocab_size": 500}, "that is for a model with vocab_size 500, not 517"),
        ({"head_dim": 48}, "that is for a model with head_dim 48, not 40"),
        ({"global_head_dim": 48}, "that is for a model with global_head_dim 48, not 56"),
        ({"num_key_value_heads": 2}, "that is for a model with num_key_value_heads 2, not 1"),
        ({"sliding_window": 24}, "that is for a model with sliding_window 24, not 22"),
    ],
)
def test_a_drafter_of_another_model_is_refused(made, tmp_path, changed, message):
    folder, _, _ = made["gemma4", False]
    raw = drafters.config_of("gemma4")
    part = raw if "backbone_hidden_size" in changed else raw["text_config"]
    part |= changed
    other = convert(
        drafters.write_checkpoint(tmp_path / "checkpoint", raw, drafters.draw(raw)), tmp_path / "other", "f32"
    )
    with pytest.raises(FieldError, match=rf"^draft must be a drafter for {folder.name}, unlike other: {message}$"):
        tinychat.load(folder, context=CONTEXT, threads=1, draft=other)


def test_a_drafter_beside_a_model_of_another_family_is_refused(made, folders):
    _, drafter, _ = made["gemma4", False]
    with pytest.raises(FieldError, match=r"unlike gemma4-False: that is for Gemma 4 models$"):
        tinychat.load(folders("qwen3-window"), context=CONTEXT, threads=1, draft=drafter)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"num_centroids": 46}, CheckpointError, r"num_centroids is 46; expected a divisor of vocab_size \(517\)"),
        ({"centroid_intermediate_top_k": 48}, CheckpointError, "centroid_intermediate_top_k is 48; expected"),
        ({"backbone_hidden_size": None}, CheckpointError, "backbone_hidden_size is missing"),
        ({"hidden_size_per_layer_input": 8}, UnsupportedModelError, "a drafter with hidden_size_per_layer_input"),
        ({"enable_moe_block": True}, UnsupportedModelError, "a drafter with enable_moe_block"),
    ],
)
def test_configurations_that_are_refused(changed, error, message):
    raw = drafters.config_of("gemma4", True)
    for key, value in changed.items():
        (raw if key in raw else raw["text_config"])[key] = value
    with pytest.raises(error, match=message):
        parse_config(raw, "config.json")


def test_clusters_that_are_no_permutation_are_refused(made, tmp_path):
    folder, drafter, weights = made["gemma4", True]
    ids = weights[f"masked_embedding.{ORDERING}.weight"].copy()
    ids[3] = ids[4]
    wrong = weights | {f"masked_embedding.{ORDERING}.weight": ids}
    checkpoint = drafters.write_checkpoint(tmp_path / "checkpoint", drafters.config_of("gemma4", True), wrong)
    with pytest.raises(CheckpointError, match=r"token_ordering is no permutation of ids: download"):
        convert(checkpoint, tmp_path / "model", "f32")
    damaged = shutil.copytree(drafter, tmp_path / "damaged")
    data, bad = (damaged / WEIGHTS).read_bytes(), np.float32(517).tobytes()
    stored = weights[f"masked_embedding.{ORDERING}.weight"].astype(np.float32).tobytes()
    (damaged / WEIGHTS).write_bytes(data.replace(stored, bad + stored[4:]))
    with pytest.raises(ModelFolderError, match=r"is damaged \(token_ordering\): convert the model again"):
        tinychat.load(folder, context=CONTEXT, threads=1, draft=damaged)
