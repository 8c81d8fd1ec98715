"""Models whose tokens attend to later ones: their hidden states against the reference and transformers."""

import embedders
import encoders
import families
import numpy as np
import pytest
import reference

import tinychat
from tinychat.checkpoint.checkpoint import open_checkpoint
from tinychat.conversion.convert import check_tensors
from tinychat.engine.sequence import new_sequence
from tinychat.errors import CheckpointError, SettingError, UnsupportedModelError
from tinychat.models.architectures import expected_shapes, parse_config, weight_count

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


OTHER_ROPE = {"rope_type": "yarn", "rope_theta": 1e6}
# Cosines of vectors of eight and of four bits. Scores of EmbeddingGemma 2 are not divided: random ones differ more.
FEW_BITS = dict.fromkeys(("bert", "nomic-bert", "embedding-gemma", "mpnet", "nomic-bert-moe"), (0.997, 0.9))
FEW_BITS["embedding-gemma2"] = (0.995, 0.75)


@pytest.mark.parametrize("name", FEW_BITS)
def test_few_bits_keep_most_of_a_vector(name, tmp_path):
    variant = encoders.BY_NAME[name]
    vectors = [load(variant, tmp_path / quant, quant).embed(texts_of(variant)) for quant in ("f32", "int8", "int4")]
    for found, least in zip(vectors[1:], FEW_BITS[name]):
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
        ("embedding-gemma2", {"use_bidirectional_attention": "all"}, 'use_bidirectional_attention "all" is not'),
        ("embedding-gemma2", {"layer_types": ["full_attention"] * 4}, "layers of one kind only are not supported"),
        ("embedding-gemma2", {"rope_parameters": {"full_attention": OTHER_ROPE}}, "'yarn' is not"),
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"embedding_dim": 0}, "embedding_dim is 0; expected an integer from 1 to 65536"),
        ({"embedding_dim": None}, "embedding_dim is missing"),
        ({"num_global_key_value_heads": 3}, "num_global_key_value_heads is 3; expected a divisor"),
        (
            {"per_layer_config": {"1": {"head_dim": 41}, "3": {"head_dim": 41}}},
            "global_head_dim is 41; expected an even",
        ),
        ({"sliding_window": "21"}, "sliding_window is '21'; expected an integer"),
    ],
)
def test_values_of_embedding_gemma_2_that_are_refused(changes, message):
    with pytest.raises(CheckpointError, match=message):
        parse_config(encoders.EMBEDDING_GEMMA2 | changes, "config.json")


def test_embedding_gemma_2_as_it_is_published():
    config = parse_config(encoders.EMBEDDING_GEMMA2_PUBLISHED, "config.json")
    # All layers of a size write over the keys and values of those before them.
    assert config.cache_shapes == ((1, 2, 256), (1, 1, 512))
    assert [config.cache_layer(layer) for layer in range(7)] == [0, 0, 0, 0, 0, 1, 0]
    assert (config.varied.wide, config.varied.input_size, config.varied.input_ids) == ((5, 11, 17, 23), 512, 0)
    assert (config.sliding_windows[4:6], config.rotary_dims[4:6]) == ((513, 0), (256, 512))
    assert (config.rope_theta, config.rope_scaling, config.sliding_rope_theta) == (1e6, None, 1e4)
    assert (config.hidden_size, config.vector_size, config.writes, config.bidirectional) == (512, 768, False, True)
    assert round(weight_count(config) / 1e6) == 271
    alone = {**encoders.EMBEDDING_GEMMA2_PUBLISHED["text_config"], "architectures": ["EmbeddingGemma2TextModel"]}
    assert parse_config(alone, "config.json") == config
    sizes = {key: alone[key] for key in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")}
    least = {"model_type": "embedding_gemma2_text", "num_attention_heads": 4, **sizes}
    assert parse_config(least, "config.json") == config


def test_vectors_pass_the_layer_behind_the_last_norm_once_they_are_pooled(tmp_path, rng):
    variant = encoders.BY_NAME["embedding-gemma2"]
    checkpoint = families.write_checkpoint(variant, tmp_path / "checkpoint")
    prompts = {"prompts": {"SearchQuery": "task: search result | query: "}, "default_prompt_name": None}
    embedders.write_modules(checkpoint, "mean_tokens", ("Transformer", "Pooling", "Dense", "Normalize"), prompts)
    ((dense, _),) = embedders.write_dense(checkpoint, rng, [(40, 136)])
    model = tinychat.load(tinychat.convert(checkpoint, tmp_path / "model", quant="f32"), kv="f32")
    text = prompts["prompts"]["SearchQuery"] + "Who wrote Faust?"
    config, weights = parse_config(variant.config, variant.name), families.make_weights(variant)
    states = reference.decoder_states(config, weights, model.encode(text))
    matrix = weights["model.embedding_projection.weight"].astype(np.float64)
    expected = dense @ (matrix @ states.mean(axis=0))
    found = model.embed(["Who wrote Faust?", "other"], prompt="SearchQuery")
    np.testing.assert_allclose(found[0], expected / np.linalg.norm(expected), atol=1e-5)
    few = model.embed(["Who wrote Faust?"], prompt="SearchQuery", dimensions=8)
    np.testing.assert_allclose(few[0], expected[:8] / np.linalg.norm(expected[:8]), atol=1e-5)


def test_a_layer_behind_the_pooling_that_does_not_fit_the_one_before(tmp_path, rng):
    checkpoint = families.write_checkpoint(encoders.BY_NAME["embedding-gemma2"], tmp_path / "checkpoint")
    embedders.write_modules(checkpoint, "mean_tokens", ("Transformer", "Pooling", "Dense", "Normalize"))
    embedders.write_dense(checkpoint, rng, [(40, 96)])
    with pytest.raises(CheckpointError, match="in_features is 96; the model gives 136 numbers"):
        open_checkpoint(checkpoint)


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


@pytest.mark.parametrize(
    ("published", "ours"),
    [(encoders.NOMIC_PUBLISHED, encoders.NOMIC_BERT), (encoders.ULTRABERT_PUBLISHED, encoders.ULTRABERT)],
)
def test_keys_of_published_files_mean_the_same(published, ours):
    assert parse_config(published, "config.json") == parse_config(ours, "config.json")


def test_windows_of_ultrabert_are_counted_on_each_side():
    config = parse_config(encoders.ULTRABERT, "config.json")
    assert (config.sliding_windows, config.rope_theta, config.sliding_rope_theta) == ((22, 22, 0, 22), 16e3, 1e3)
    least = {key: encoders.ULTRABERT[key] for key in encoders.ULTRABERT.keys() & encoders.ULTRABERT_PUBLISHED.keys()}
    config = parse_config(least, "config.json")
    assert (config.sliding_windows, config.rope_theta, config.sliding_rope_theta) == ((129, 129, 0, 129), 2.56e6, 1e4)


@pytest.mark.parametrize(("name", "prefix"), [("ultrabert", "ultrabert."), ("embedding-gemma2", "language_model.")])
def test_tensors_of_published_files_have_another_name_before_theirs(name, prefix, tmp_path):
    from safetensors.numpy import load_file, save_file

    plain, published = (families.write_checkpoint(encoders.BY_NAME[name], tmp_path / kind) for kind in ("a", "b"))
    file = published / "model.safetensors"
    save_file({f"{prefix}{each.removeprefix('model.')}": values for each, values in load_file(file).items()}, file)
    found, expected = open_checkpoint(published), open_checkpoint(plain).tensors
    check_tensors(found)
    for each, _ in expected_shapes(found.config):
        np.testing.assert_array_equal(found.tensors.read(each), expected.read(each))


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
        ("UltrabertForMaskedLM", "ultrabert"),
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
    model, texts = load(variant, tmp_path, kv="f32"), texts_of(variant)
    matrix = model.engine.projection
    for ids, states, vector in zip(texts, states_of(model, texts), model.embed(texts)):
        with torch.no_grad():
            expected = theirs(torch.tensor([ids])).last_hidden_state[0].numpy()
        assert_close(states if matrix is None else states @ matrix.T, expected)
        mean = expected.mean(axis=0)
        assert_close(vector, mean / np.linalg.norm(mean))
