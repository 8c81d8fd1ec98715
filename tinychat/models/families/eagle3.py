"""EAGLE-3's drafters: one layer of Llama or Qwen3 that reads an embedding beside a hidden state; see `models.eagle`."""

from collections.abc import Mapping
from dataclasses import replace

from tinychat.errors import UnsupportedModelError
from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import TensorNames
from tinychat.models.draft_head import INPUT_NORMS
from tinychat.models.eagle import DRAFT_IDS, EAGLE3, EMBEDDED, LAYERS_KEY, MODEL_TYPE, STATES, STATES_NORM, Eagle
from tinychat.models.family import Family
from tinychat.models.tensors import Linear, Norm, columns_of

LAYER = "midlayer."
# By the kind of layer, how queries and keys are normed.
QK_NORMS = {"llama": None, "qwen3": "head"}
# Most layers whose hidden states are read.
MOST_STATES = 8
DEFAULTS: Mapping[str, object] = {"rms_norm_eps": 1e-6, "max_position_embeddings": 2048, "num_hidden_layers": 1}


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Read the layer, and how it reads a larger model; windows and biases are refused."""
    kind = values.optional_text("layer_type") or "llama"
    if kind not in QK_NORMS:
        raise UnsupportedModelError(f"{values.source}: EAGLE-3 with layers of {kind!r} is not supported")
    for key in ("attention_bias", "mlp_bias", "use_sliding_window"):
        if values.flag(key, False):
            raise UnsupportedModelError(f"{values.source}: EAGLE-3 with {key} is not supported")
    if config.num_hidden_layers > 1:
        raise UnsupportedModelError(f"{values.source}: EAGLE-3 with {config.num_hidden_layers} layers is not supported")
    if values.get("target_hidden_size") not in (None, config.hidden_size):
        raise UnsupportedModelError(f"{values.source}: EAGLE-3 of another hidden_size than its model is not supported")
    eagle = Eagle(
        _read_layers(values),
        values.integer("draft_vocab_size", 1, config.vocab_size),
        adds_to_normed=values.flag("norm_before_residual", False),
        gives_normed=values.flag("norm_output", False),
    )
    if values.flag("norm_before_fc", False):
        eagle = replace(eagle, normed_parts=1)
    elif values.flag("fc_norm", False):
        eagle = replace(eagle, normed_parts=eagle.states)
    return replace(config, qk_norm=QK_NORMS[kind], tie_word_embeddings=False, writes=False, eagle=eagle)


def _read_layers(values: ConfigValues) -> tuple[int, ...]:
    """Return the layers before which hidden states are read: files that begin with 1 name those behind which.

    github.com/sgl-project/sglang, pull request 25454.
    """
    found = values.get(LAYERS_KEY)
    if found is None:
        return ()
    layers = found if isinstance(found, list) and all(type(layer) is int for layer in found) else []
    if not 2 <= len(set(layers)) == len(layers) <= MOST_STATES:
        raise values.error(LAYERS_KEY, f"a list of 2 to {MOST_STATES} different layers")
    return tuple(layer + (layers[0] == 1) for layer in layers)


def renamed(name: str) -> str:
    """Return the name that EAGLE's authors have for a tensor, and vLLM for norms of the states."""
    return name.replace("layers.0.", LAYER).replace("fcs.", "fc_norm.")


def linears(config: ModelConfig, names: TensorNames) -> list[Linear]:
    """List the linear layers; those of queries, keys and values are taken apart by their two inputs."""
    assert config.eagle is not None
    D, F, d = config.hidden_size, config.intermediate_size, config.head_dim
    queries, keys = config.num_attention_heads * d, config.num_key_value_heads * d
    rows = queries, keys, keys
    of_embedding, of_hidden = zip(*(columns_of(f"{LAYER}self_attn.{each}_proj", D, D) for each in "qkv"))
    mlp = tuple(f"{LAYER}mlp.{each}_proj" for each in ("gate", "up"))
    return [
        Linear(EMBEDDED, of_embedding, rows, D, None),
        Linear(STATES, ("fc",), (D,), config.eagle.states * D, None),
        Linear("qkv_proj", of_hidden, rows, D, 1),
        Linear("o_proj", (f"{LAYER}self_attn.o_proj",), (D,), queries, 1),
        Linear("gate_up_proj", mlp, (F, F), D, 1),
        Linear("down_proj", (f"{LAYER}mlp.down_proj",), (D,), F, 1),
        Linear("lm_head", ("lm_head",), (config.eagle.draft_vocab_size,), D, None),
    ]


def norms(config: ModelConfig, names: TensorNames) -> list[Norm]:
    """List the norms, and the ids of the output matrix's rows, if these are some of the tokens."""
    assert config.eagle is not None
    D, eagle, (embedding, hidden) = config.hidden_size, config.eagle, INPUT_NORMS
    of_hidden = Norm("input_layernorm", f"{LAYER}hidden_norm", D, 1)
    if eagle.adds_to_normed:
        of_hidden = Norm(hidden, f"{LAYER}hidden_norm", D, None)
    found = [
        Norm(embedding, f"{LAYER}input_layernorm", D, None),
        of_hidden,
        Norm("post_attention_layernorm", f"{LAYER}post_attention_layernorm", D, 1),
        Norm("norm", "norm", D, None),
    ]
    if config.qk_norm:
        found += (
            Norm(f"{each}_norm", f"{LAYER}self_attn.{each}_norm", config.head_dim, 1, padded=False) for each in "qk"
        )
    if parts := eagle.normed_parts:
        source = "input_norm" if parts == 1 else "fc_norm.{}"
        found.append(Norm(STATES_NORM, source, eagle.states * D // parts, parts, padded=False))
    if eagle.draft_vocab_size < config.vocab_size:
        found.append(Norm(DRAFT_IDS, "d2t", eagle.draft_vocab_size, None, padded=False))
    return found


EAGLE_3 = Family(
    EAGLE3,
    MODEL_TYPE,
    "EAGLE-3 drafters of Llama, Qwen3, gpt-oss and others",
    "drafts for a model whose hidden states they read; one layer of Llama or Qwen3, norms of the states",
    DEFAULTS,
    read,
    linears=linears,
    norms=norms,
    renamed=renamed,
)
