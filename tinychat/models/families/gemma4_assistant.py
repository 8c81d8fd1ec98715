"""Gemma 4's drafters: a few of its layers, with queries only, that attend to the cache of a Gemma 4 model.

Each layer reads the keys and values of the last layer of its kind there; see `models.drafter`
(github.com/huggingface/transformers, models/gemma4_assistant and gemma4_unified_assistant).
"""

from collections.abc import Mapping
from dataclasses import replace

from tinychat.errors import UnsupportedModelError
from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import TensorNames
from tinychat.models.draft_head import INPUTS
from tinychat.models.drafter import GEMMA4, GEMMA4_UNIFIED, ORDERING, STATE, Drafter
from tinychat.models.experts import MOST, ROUTER, Experts
from tinychat.models.families import gemma4
from tinychat.models.families.gemma import FOUR_NORMS
from tinychat.models.family import Family
from tinychat.models.tensors import Linear, Norm, columns_of

# Keys of the whole model; the others are in its section.
_OUTSIDE = (
    "architectures",
    "model_type",
    "backbone_hidden_size",
    "use_ordered_embeddings",
    "num_centroids",
    "centroid_intermediate_top_k",
)
# Parts of Gemma 4's layers that a drafter's do not have.
_LACKING = ("hidden_size_per_layer_input", "enable_moe_block", "use_double_wide_mlp")


def prepared(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Return the values of the text model's section, and beside them those of the whole model."""
    section = raw.get("text_config")
    if isinstance(section, Mapping):
        raw = {**section, **{key: raw[key] for key in _OUTSIDE if key in raw}}
    # What files say of shared layers is that all are.
    return {**raw, **gemma4.prepared(raw), "num_kv_shared_layers": 0}


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Read Gemma 4's layers, none of which has keys and values of its own."""
    for key in _LACKING:
        if values.get(key):
            raise UnsupportedModelError(f"{values.source}: a drafter with {key} is not supported")
    config = gemma4.read(values, config)
    assert config.varied is not None
    size = values.integer("backbone_hidden_size", 1, 1 << 20)
    return replace(
        config,
        tie_word_embeddings=False,
        logits_softcap=None,
        embedding_multiplier=size**0.5,
        varied=replace(config.varied, sources=(-1,) * config.num_hidden_layers),
        drafter=Drafter(size, _read_clusters(values, config.vocab_size)),
        writes=False,
    )


def _read_clusters(values: ConfigValues, vocab_size: int) -> Experts | None:
    """Read the clusters of the output matrix, of as many tokens each."""
    if not values.flag("use_ordered_embeddings", False):
        return None
    count = values.integer("num_centroids", 1, MOST)
    if vocab_size % count:
        raise values.error("num_centroids", f"a divisor of vocab_size ({vocab_size})")
    used = values.integer("centroid_intermediate_top_k", 1, count)
    return Experts(count, used, vocab_size // count, layers=())


def linears(config: ModelConfig, names: TensorNames) -> list[Linear]:
    """List the linear layers; the output matrix is first, whose tensor the checkpoint calls the embedding."""
    assert config.drafter is not None
    size, D, clusters = config.drafter.hidden_size, config.hidden_size, config.drafter.clusters
    output = [Linear("lm_head", ("model.embed_tokens",), (config.vocab_size,), D, None)]
    if clusters:
        rows, count = (clusters.intermediate_size,), clusters.num_experts
        output = [
            Linear("lm_head", ("masked_embedding.clusters.{1}",), rows, D, 1, experts=count),
            Linear(ROUTER, ("masked_embedding.centroids",), (count,), D, None),
        ]
    _, *layers = gemma4.linears(replace(config, tie_word_embeddings=True), names)
    inputs = zip(INPUTS, columns_of("pre_projection", size, size))
    return [
        *output,
        *layers,
        *(Linear(name, (source,), (D,), size, None) for name, source in inputs),
        Linear(STATE, ("post_projection",), (size,), D, None),
    ]


def norms(config: ModelConfig, names: TensorNames) -> list[Norm]:
    """List the norms, and the ids of the tokens of clusters."""
    found = gemma4.norms(config, names)
    if config.drafter and config.drafter.clusters:
        found.append(Norm(ORDERING, f"masked_embedding.{ORDERING}", config.vocab_size, None, padded=False))
    return found


DEFAULTS = gemma4.DEFAULTS | {
    "backbone_hidden_size": 1536,
    "num_centroids": 2048,
    "centroid_intermediate_top_k": 32,
    "hidden_size_per_layer_input": 0,
    "num_attention_heads": 8,
    "vocab_size": 262144,
}
COVERED = "drafts for a Gemma 4 model, whose keys and values they read; output matrix as a whole, and in clusters"

GEMMA4_ASSISTANT = Family(
    "Gemma4AssistantForCausalLM",
    GEMMA4,
    "Gemma 4's drafters",
    COVERED,
    DEFAULTS,
    read,
    FOUR_NORMS,
    linears,
    norms,
    names={"hidden_act": "hidden_activation"},
    prepared=prepared,
)
GEMMA4_UNIFIED_ASSISTANT = replace(
    GEMMA4_ASSISTANT,
    architecture="Gemma4UnifiedAssistantForCausalLM",
    model_type=GEMMA4_UNIFIED,
    models="Gemma 4 12B's drafter",
    defaults=DEFAULTS | gemma4.UNIFIED_DEFAULTS,
)
