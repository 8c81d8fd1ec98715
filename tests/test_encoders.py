"""Models whose tokens attend to later ones: their hidden states against the reference and transformers."""

import encoders
import families
import numpy as np
import pytest
import reference

import tinychat
from tinychat.engine.sequence import new_sequence
from tinychat.errors import CheckpointError, SettingError, UnsupportedModelError
from tinychat.models.architectures import parse_config

TOLERANCE = 1e-3  # of the states' standard deviation
LENGTHS = (1, 2, 3, 17, 200)
encoders_of_each_kind = pytest.mark.parametrize("variant", encoders.ENCODERS, ids=lambda variant: variant.name)


def states_of(model, texts):
    """Return the hidden states of texts that run in one step."""
    chunks = [new_sequence(model.engine, 256).chunk(ids, len(ids), 0) for ids in texts]
    return model.engine.hidden_states(chunks)


def texts_of(variant):
    """Return the ids of a text of each length, none of which is padding: RoBERTa gives that no position."""
    ids = [3 if token == variant.config.get("pad_token_id") else token for token in families.make_ids(variant)]
    return [ids[-count:] for count in LENGTHS]


def load(variant, folder, quant="f32", **options):
    checkpoint = families.write_checkpoint(variant, folder / "checkpoint")
    return tinychat.load(tinychat.convert(checkpoint, folder / "model", quant=quant), context=256, **options)


def assert_close(states, expected, tolerance=TOLERANCE):
    assert states.shape == expected.shape
    assert np.max(np.abs(states - expected)) < tolerance * np.std(expected)


@encoders_of_each_kind
def test_hidden_states_equal_the_reference(variant, tmp_path):
    model, weights = load(variant, tmp_path, kv="f32"), families.make_weights(variant)
    config = parse_config(variant.config, variant.name)
    assert (config.bidirectional, config.writes, model.writes) == (True, False, False)
    texts = texts_of(variant)
    together = states_of(model, texts)
    for ids, states in zip(texts, together):
        assert_close(states, reference.decoder_states(config, weights, ids))
        assert states_of(model, [ids])[0].tobytes() == states.tobytes()


@pytest.mark.parametrize("name", ["bert", "nomic-bert", "embedding-gemma", "mpnet", "nomic-bert-moe"])
def test_few_bits_keep_most_of_a_vector(name, tmp_path):
    variant = encoders.BY_NAME[name]
    vectors = [load(variant, tmp_path / quant, quant).embed(texts_of(variant)) for quant in ("f32", "int8", "int4")]
    for found, least in zip(vectors[1:], (0.997, 0.9)):
        assert (np.sum(found * vectors[0], axis=1) > least).all()


def test_a_text_runs_in_one_step(tmp_path):
    model = load(encoders.BY_NAME["bert"], tmp_path)
    sequence = new_sequence(model.engine, 256)
    with pytest.raises(SettingError, match="a part of a text"):
        model.engine.hidden_states([sequence.chunk([1, 2], 3, 0)])
    with pytest.raises(SettingError, match="a context of 257 tokens is too large for this model"):
        new_sequence(model.engine, 257)


def test_texts_longer_than_a_step_of_others(tmp_path):
    variant = encoders.Variant("long", encoders.EUROBERT | {"max_position_embeddings": 2048})
    checkpoint = families.write_checkpoint(variant, tmp_path / "checkpoint")
    model = tinychat.load(tinychat.convert(checkpoint, tmp_path / "model", quant="f32"), kv="f32")
    ids = (families.make_ids(variant) * 10)[:1500]
    config, weights = parse_config(variant.config, variant.name), families.make_weights(variant)
    expected = reference.decoder_states(config, weights, ids).mean(axis=0)
    vectors = model.embed([[7], ids, [7], ids[:300]])
    np.testing.assert_allclose(vectors[1], expected / np.linalg.norm(expected), atol=1e-5)
    assert vectors[0].tobytes() == vectors[2].tobytes()


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type relative_key is not supported"),
        ("bert", {"is_decoder": True}, "is_decoder true is not supported"),
        ("nomic-bert", {"rotary_emb_fraction": 0.5}, "a rotary_emb_fraction below 1 is not supported"),
        ("nomic-bert", {"num_experts": 8}, "experts with gates are not supported"),
        ("nomic-bert", {"rotary_scaling_factor": 2.0}, "rotary_scaling_factor is not supported"),
        ("nomic-bert-moe", {"expert_choice_router": True}, "expert_choice_router true is not supported"),
        ("jina-v2", {"position_embedding_type": "absolute"}, "position_embedding_type absolute is not supported"),
        ("jina-v2", {"feed_forward_type": "original"}, "'without gates' is not supported"),
        ("electra", {"embedding_size": 64}, "an embedding_size other than hidden_size is not supported"),
        ("gte-new", {"position_embedding_type": "absolute"}, "position_embedding_type absolute is not supported"),
        ("gte-new", {"layer_norm_type": "rms_norm"}, "layer_norm_type rms_norm is not supported"),
        ("gte-new", {"rope_scaling": {"type": "ntk", "factor": 8.0, "mixed_b": 0.5}}, "rope type 'ntk' is not"),
        ("qwen3-both-ways", {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": 9}, "later tokens"),
    ],
)
def test_what_is_not_supported_is_refused(name, changes, message):
    with pytest.raises(UnsupportedModelError, match=message):
        parse_config(encoders.BY_NAME[name].config | changes, "config.json")


@pytest.mark.parametrize("positions", [0, 1])
def test_positions_that_begin_behind_the_padding(positions):
    with pytest.raises(CheckpointError, match="max_position_embeddings"):
        parse_config(encoders.BY_NAME["xlm-roberta"].config | {"max_position_embeddings": positions}, "config.json")


@pytest.mark.parametrize(("name", "gate"), [("swiglu", "silu"), ("geglu", "gelu"), (None, "silu")])
def test_names_of_gates(name, gate):
    raw = {**encoders.NOMIC_PUBLISHED, "activation_function": name}
    assert parse_config(raw, "").hidden_act == parse_config(encoders.NOMIC_BERT | {"hidden_act": gate}, "").hidden_act


def test_activations_without_gates():
    found = parse_config({**encoders.NOMIC_PUBLISHED, "activation_function": "gelu"}, "")
    assert (found.hidden_act, found.gated) == ("gelu", False)
    with pytest.raises(UnsupportedModelError, match="'tanh' is not supported"):
        parse_config({**encoders.NOMIC_PUBLISHED, "activation_function": "tanh"}, "")


@pytest.mark.parametrize(("every", "layers"), [(2, (1, 3)), (3, (1,)), (4, (1,))])
def test_layers_of_nomic_bert_that_have_experts(every, layers):
    experts = parse_config({**encoders.NOMIC_MOE, "moe_every_n_layers": every}, "").experts
    assert (experts.layers, experts.num_experts_per_tok, experts.norm_topk_prob) == (layers, 2, False)


def test_keys_of_published_files_mean_the_same():
    ours = parse_config(encoders.NOMIC_PUBLISHED, "config.json")
    assert ours == parse_config(encoders.NOMIC_BERT, "config.json")


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        ("BertForMaskedLM", "bert"),
        ("XLMRobertaForMaskedLM", "xlm-roberta"),
        ("DistilBertForMaskedLM", "distilbert"),
        ("MPNetForMaskedLM", "mpnet"),
        ("ElectraForPreTraining", "electra"),
        ("NewForTokenClassification", "gte-new"),
        ("JinaBertForMaskedLM", "jina-v2"),
    ],
)
def test_checkpoints_with_a_head_that_is_left_out(architecture, name):
    variant = encoders.BY_NAME[name]
    assert (
        parse_config(variant.config | {"architectures": [architecture]}, "").architecture
        == variant.config["architectures"][0]
    )


def transformers_encoder(checkpoint, theirs):
    """Return the model of a checkpoint, read by another configuration if there is one."""
    import torch
    import transformers

    config = transformers.AutoConfig.for_model(**theirs) if theirs else None
    theirs, report = transformers.AutoModel.from_pretrained(
        checkpoint, config=config, dtype=torch.float32, output_loading_info=True
    )
    assert not report["unexpected_keys"] and all("pooler" in name for name in report["missing_keys"]), report
    return theirs.eval()


def remote_encoder(variant):
    """Return the model that stands for code that comes with checkpoints."""
    import remote_models
    import torch

    weights = families.stored(variant, families.make_weights(variant))
    state = {name: torch.from_numpy(values.astype(np.float32)) for name, values in weights.items()}
    return remote_models.ENCODERS[variant.config["architectures"][0]](variant.config, state)


@pytest.mark.live
@pytest.mark.filterwarnings("ignore")
@encoders_of_each_kind
def test_hidden_states_equal_transformers(variant, tmp_path):
    torch, _ = pytest.importorskip("torch"), pytest.importorskip("transformers")
    checkpoint = families.write_checkpoint(variant, tmp_path / "checkpoint")
    if variant.name in encoders.REMOTE:
        theirs = remote_encoder(variant)
    else:
        theirs = transformers_encoder(checkpoint, variant.theirs)
    model = load(variant, tmp_path, kv="f32")
    for ids, states in zip(texts_of(variant), states_of(model, texts_of(variant))):
        with torch.no_grad():
            expected = theirs(torch.tensor([ids])).last_hidden_state[0].numpy()
        assert_close(states, expected)
