"""GTE of the second generation: an encoder with rotation, gates and layer norms of the residual stream.

Its makers call the code "New", which transformers has as GTE; tensors are the same. Queries, keys and values are one,
and so are gates with what they let through, which stands first (Zhang et al., 2024, https://arxiv.org/abs/2407.19669;
github.com/huggingface/transformers, models/gte).
"""

from collections.abc import Mapping
from dataclasses import replace

from tinychat.errors import UnsupportedModelError
from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import TensorNames, decoder_linears
from tinychat.models.families.bert import NAMES, encoder, require_texts, stream_norms, without_gate_bias
from tinychat.models.family import Family, classifier_stem
from tinychat.models.tensors import Linear, rows_of, with_first_row

DEFAULTS = {
    "hidden_act": "gelu",
    "max_position_embeddings": 8192,
    "layer_norm_eps": 1e-12,
    "type_vocab_size": 1,
    "rope_theta": 160000.0,
}


def _tensors(model: str) -> TensorNames:
    layer = f"{model}.encoder.layer.{{}}."
    return TensorNames(
        embed=f"{model}.embeddings.word_embeddings",
        qkv=(f"{layer}attention.qkv_proj",),
        o=f"{layer}attention.o_proj",
        gate_up=(f"{layer}mlp.up_gate_proj",),
        down=f"{layer}mlp.down_proj",
        norms=stream_norms(f"{model}.embeddings.LayerNorm", f"{layer}attn_ln", f"{layer}mlp_ln"),
        norm_bias=True,
    )


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Return the configuration; some models have no kinds of text."""
    values.require(pack_qkv=True, logn_attention_scale=False)
    require_texts(values, position_embedding_type=(None, "rope"), layer_norm_type=(None, "layer_norm"))
    kinds = values.integer("type_vocab_size", 0, 1 << 16)
    if kinds > 1 and classifier_stem(values):
        raise UnsupportedModelError(f"{values.source}: a model that ranks by {kinds} kinds of text is not supported")
    return replace(encoder(config), qkv_bias=True, o_bias=True, mlp_bias=True, token_kinds=min(1, kinds))


def linears(config: ModelConfig, names: TensorNames) -> list[Linear]:
    """List the linears; what an MLP's gates let through stands first there."""
    up, gate = rows_of(names.gate_up[0], config.intermediate_size, config.intermediate_size)
    kinds = names.embed.replace("word", "token_type")
    embed = with_first_row(names.embed, kinds) if config.token_kinds else names.embed
    return without_gate_bias(decoder_linears(config, replace(names, embed=embed, gate_up=(gate, up))))


def prepare(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Bring a rotary embedding of type "ntk" to one whose base is larger and whose angles are divided by a number."""
    section, numbers = raw.get("rope_scaling"), [raw.get(key) for key in ("hidden_size", "num_attention_heads")]
    if not isinstance(section, Mapping) or section.get("type") != "ntk" or section.get("mixed_b") is not None:
        return raw
    size, heads = (number if type(number) is int and number > 0 else 1 for number in numbers)
    factor, theta = section.get("factor"), raw.get("rope_theta", 10000.0)
    if not isinstance(factor, int | float) or not isinstance(theta, int | float) or not 1 <= factor <= 1e6:
        return raw
    linear = {"rope_type": "linear", "factor": float(factor) ** (2 * heads / size), "rope_theta": theta * factor}
    return {**raw, "rope_scaling": linear}


GTE = Family(
    "GteModel",
    "gte",
    "GTE: gte-multilingual, arctic-embed-m-v2.0",
    "an encoder with rotation and gates: embeddings and ranking alone",
    DEFAULTS,
    read,
    _tensors("gte"),
    linears,
    names=NAMES,
    prepared=prepare,
    also_written=("GteForMaskedLM", "GteForTokenClassification"),
)
NEW = replace(
    GTE,
    architecture="NewModel",
    model_type="new",
    models="the same as its makers publish it: gte-v1.5",
    covered="the same",
    defaults=DEFAULTS | {"rope_theta": 10000.0},
    tensors=_tensors("new"),
    also_written=("NewForMaskedLM", "NewForTokenClassification"),
)
