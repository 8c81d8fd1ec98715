"""BERT, RoBERTa and Nomic BERT: encoders, whose tokens attend to all of a text; they give embeddings.

Layer norms stand behind attention and MLP, on the residual stream, and behind the embedding, which has a vector for the
kind of text added: that of the first kind here, but in models that rank, which read a query and a document. BERT and
RoBERTa have learned positions, biases and an MLP without gates. RoBERTa's first position comes behind that of padding.
Nomic BERT rotates queries and keys, and has gates and no biases (Devlin et al., 2018,
https://arxiv.org/abs/1810.04805; Liu et al., 2019, https://arxiv.org/abs/1907.11692;
Nussbaum et al., 2024, https://arxiv.org/abs/2402.01613; github.com/huggingface/transformers, models/bert, roberta and
nomic_bert).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from tinychat.errors import UnsupportedModelError
from tinychat.json_file import one_line
from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import ExpertNames, TensorNames, decoder_linears
from tinychat.models.experts import MOST, Experts, read_experts
from tinychat.models.family import Family, classifier_stem, with_names
from tinychat.models.rope_scaling import MAX_POSITIONS
from tinychat.models.tensors import POSITIONS, Linear, Table, joined, rows_of, with_first_row

BERT, ROBERTA = "bert", "roberta"
EMBEDDINGS = "embeddings."
KINDS = "embeddings.token_type_embeddings"
DEFAULTS = {
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
    "layer_norm_eps": 1e-12,
    "type_vocab_size": 2,
    "pad_token_id": 0,
}
NAMES = {"rms_norm_eps": "layer_norm_eps"}
# Of RoBERTa's positions the first ones are those of padding, which has this id.
PADDING = 1
# Keys of transformers, which has no Nomic BERT with experts, by those of published files.
NOMIC_NAMES = {
    "n_embd": "hidden_size",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
    "moe_top_k": "num_experts_per_tok",
}
# What those have that transformers takes as given.
NOMIC_PUBLISHED = {
    "hidden_act": "silu",
    "rotary_emb_fraction": 1.0,
    "num_shared_experts": 0,
    "moe_every_n_layers": 2,
}
_GATES = {"swiglu": "silu", "geglu": "gelu"}
NOMIC_DEFAULTS = {
    "max_position_embeddings": 2048,
    "layer_norm_eps": 1e-12,
    "rope_theta": 1000.0,
}


def stream_norms(embed: str, attention: str, mlp: str) -> dict[str, str]:
    """Return `TensorNames.norms` of a model with norms of the residual stream, behind embedding, attention and MLP."""
    return {"embed_norm": embed, "post_self_attn_layernorm": attention, "post_mlp_layernorm": mlp}


def bert_tensors(model: str) -> TensorNames:
    """Return the names of BERT's tensors under the name of a model."""
    layer = f"{model}.encoder.layer.{{}}."
    attention = f"{layer}attention."
    return TensorNames(
        embed=f"{model}.{EMBEDDINGS}word_embeddings",
        qkv=(f"{attention}self.query", f"{attention}self.key", f"{attention}self.value"),
        o=f"{attention}output.dense",
        gate_up=(f"{layer}intermediate.dense",),
        down=f"{layer}output.dense",
        norms=stream_norms(
            f"{model}.{EMBEDDINGS}LayerNorm", f"{attention}output.LayerNorm", f"{layer}output.LayerNorm"
        ),
        norm_bias=True,
    )


NOMIC_LAYER = "nomic_bert.encoder.layers.{}."
NOMIC_TENSORS = TensorNames(
    embed=with_first_row(f"nomic_bert.{EMBEDDINGS}word_embeddings", f"nomic_bert.{KINDS}"),
    qkv=(f"{NOMIC_LAYER}attn.Wqkv",),
    o=f"{NOMIC_LAYER}attn.out_proj",
    gate_up=(f"{NOMIC_LAYER}mlp.fc12", f"{NOMIC_LAYER}mlp.fc11"),
    down=f"{NOMIC_LAYER}mlp.fc2",
    norms=stream_norms("nomic_bert.emb_ln", f"{NOMIC_LAYER}norm1", f"{NOMIC_LAYER}norm2"),
    norm_bias=True,
    experts=ExpertNames(
        router=(f"{NOMIC_LAYER}mlp.router.layer",),
        gate_up=(f"{NOMIC_LAYER}mlp.experts.{{}}.mlp.w1",),
        down=f"{NOMIC_LAYER}mlp.experts.{{}}.mlp.w2",
        shift=f"{NOMIC_LAYER}mlp.experts.bias",
    ),
)


def encoder(config: ModelConfig) -> ModelConfig:
    """Return the configuration of an encoder with layer norms of the residual stream."""
    return replace(config, layer_norm=True, stream_norms=True, bidirectional=True)


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Return the configuration of BERT; where it ranks, queries and documents are two kinds of text."""
    kinds = values.integer("type_vocab_size", 1, 1 << 16) if classifier_stem(values) else 1
    return replace(_read(values, config), token_kinds=min(2, kinds))


def _read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    values.require(is_decoder=False, add_cross_attention=False)
    require_texts(values, position_embedding_type=(None, "absolute"))
    return with_positions(config)


def require_texts(values: ConfigValues, **known: tuple[str | None, ...]) -> None:
    """Refuse names that are none of the given ones."""
    for key, names in known.items():
        if (found := values.optional_text(key)) not in names:
            raise UnsupportedModelError(f"{values.source}: {key} {one_line(str(found), 40)} is not supported")


def with_positions(config: ModelConfig) -> ModelConfig:
    """Return the configuration of an encoder with learned positions, biases everywhere and an MLP without gates."""
    config = replace(encoder(config), gated=False, learned_positions=True, rotary_dims=(0,) * config.num_hidden_layers)
    return replace(config, qkv_bias=True, o_bias=True, mlp_bias=True)


def read_roberta(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Return the configuration of RoBERTa."""
    return _read(values, behind_padding(values, config))


def behind_padding(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Return the configuration of a model whose positions begin behind those of padding."""
    values.integer("pad_token_id", PADDING, PADDING)
    values.integer("max_position_embeddings", PADDING + 2, MAX_POSITIONS)
    return replace(config, max_position_embeddings=config.max_position_embeddings - PADDING - 1)


def read_nomic(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Return the configuration of Nomic BERT."""
    values.require(prenorm=False, parallel_block=False, use_rms_norm=False, rotary_emb_interleaved=False)
    values.require(rotary_scaling_factor=None)
    if values.number("rotary_emb_fraction", 0.0, 1.0) != 1.0:
        raise UnsupportedModelError(f"{values.source}: a rotary_emb_fraction below 1 is not supported")
    trained = values.optional_integer("max_trained_positions", 1, config.max_position_embeddings)
    qkv_bias, mlp_bias = values.flag("qkv_proj_bias", False), values.flag("mlp_fc1_bias", False)
    values.require(mlp_fc2_bias=mlp_bias)
    return replace(
        encoder(config),
        max_position_embeddings=trained or config.max_position_embeddings,
        gated=values.flag("gated", True),
        qkv_bias=qkv_bias,
        o_bias=qkv_bias,
        mlp_bias=mlp_bias,
        experts=_read_nomic_experts(values, config),
    )


def _read_nomic_experts(values: ConfigValues, config: ModelConfig) -> Experts | None:
    if not values.optional_integer("num_experts", 0, MOST):
        return None
    if values.flag("gated", True):
        raise UnsupportedModelError(f"{values.source}: experts with gates are not supported")
    values.require(expert_choice_router=False)
    values.integer("num_shared_experts", 0, 0)
    every = values.integer("moe_every_n_layers", 2, config.num_hidden_layers)
    return replace(
        read_experts(values, "intermediate_size", range(1, config.num_hidden_layers, every)),
        norm_topk_prob=values.flag("moe_normalize_expert_weights", False),
        shifted=values.flag("shifted_experts", True),
    )


def without_gate_bias(linears: list[Linear]) -> list[Linear]:
    """Return the linears of a model whose MLPs have a bias in the last one alone."""
    return [replace(each, bias=False) if each.name == "gate_up_proj" else each for each in linears]


def nomic_linears(config: ModelConfig, names: TensorNames) -> list[Linear]:
    """List the linears; the last ones of experts are transposed, and those without gates have names of their own."""
    if not config.gated:
        names = replace(names, gate_up=(f"{NOMIC_LAYER}mlp.fc1",))
    found = decoder_linears(config, names)
    return [replace(each, transposed=True) if each.name == "expert_down_proj" else each for each in found]


def prepare_nomic(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Bring the keys of published files to those of transformers, and names of gates to those of activations."""
    found = {**NOMIC_PUBLISHED, **with_names(NOMIC_NAMES)(raw)}
    gates = found.get("activation_function")
    return found if gates is None else {**found, "hidden_act": _GATES.get(str(gates), gates), "gated": gates in _GATES}


def position_tables(model: str, first: int = 0) -> Callable[[ModelConfig], list[Table]]:
    """Return a `Family.tables` of positions that begin at a row of their tensor."""
    positions, kinds = f"{model}.{EMBEDDINGS}position_embeddings", f"{model}.{KINDS}"

    def tables(config: ModelConfig) -> list[Table]:
        """List the vectors of the positions, with that of the kind of text: those of the next kind stand below."""
        rows, columns, count = config.max_position_embeddings, config.hidden_size, config.token_kinds
        parts = rows_of(kinds, *[1] * count) if count > 1 else [kinds]
        source = joined(*(with_first_row(positions, part) for part in parts))
        return [Table(POSITIONS, source, rows * count, columns, first)]

    return tables


def positions_alone(source: str, first: int = 0) -> Callable[[ModelConfig], list[Table]]:
    """Return the same of a model without kinds of text; source : their tensor."""
    return lambda config: [Table(POSITIONS, source, config.max_position_embeddings, config.hidden_size, first)]


def also_written(stem: str) -> tuple[str, ...]:
    """Return the architectures of an encoder with heads that are left out."""
    return f"{stem}ForMaskedLM", f"{stem}ForPreTraining"


BERT_MODEL = Family(
    "BertModel",
    "bert",
    "BERT: bge, e5, gte, mxbai-embed, all-MiniLM, arctic-embed",
    "an encoder: embeddings alone",
    DEFAULTS,
    read,
    bert_tensors(BERT),
    tables=position_tables(BERT),
    names=NAMES,
    also_written=also_written("Bert"),
)
ROBERTA_MODEL = Family(
    "RobertaModel",
    "roberta",
    "RoBERTa",
    "the same",
    DEFAULTS | {"pad_token_id": PADDING},
    read_roberta,
    bert_tensors(ROBERTA),
    tables=position_tables(ROBERTA, PADDING + 1),
    names=NAMES,
    also_written=also_written("Roberta"),
)
NOMIC_BERT_MODEL = Family(
    "NomicBertModel",
    "nomic_bert",
    "nomic-embed-text 1, 1.5 and 2 (MoE)",
    "an encoder with rotation, gates or experts: embeddings alone",
    NOMIC_DEFAULTS,
    read_nomic,
    NOMIC_TENSORS,
    linears=nomic_linears,
    names=NAMES,
    prepared=prepare_nomic,
    also_written=("NomicBertForMaskedLM",),
)
