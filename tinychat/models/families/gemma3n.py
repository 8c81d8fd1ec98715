"""Gemma 3n (text): Gemma 4's shared keys and embeddings for each layer, with four residual streams.

Each layer predicts all streams from each other, runs one of them, and corrects the others by what comes of it (AltUp).
A linear of low rank stands beside attention (LAuReL). In the first layers, only the largest gates of the MLP are open,
those above a number of standard deviations (github.com/huggingface/transformers, models/gemma3n).
"""

from collections.abc import Mapping
from dataclasses import replace
from statistics import NormalDist

from tinychat.errors import UnsupportedModelError
from tinychat.models.altup import LAUREL, STREAM_LINEARS, STREAMS, AltUp
from tinychat.models.config import ModelConfig, read_windows, with_attention_bias
from tinychat.models.config_values import MAX_VOCAB_SIZE, ConfigValues
from tinychat.models.decoder import LAYER, TensorNames
from tinychat.models.families import gemma4
from tinychat.models.families.gemma import FOUR_NORMS
from tinychat.models.family import Family
from tinychat.models.rope_scaling import read_sliding_theta, split_rope
from tinychat.models.tensors import Linear, Norm
from tinychat.models.varied_layers import VariedLayers

_COLUMNS = 16  # streams stand side by side in vectors of so many


def prepared(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Return the values of a file with one width for the MLPs of all layers, where they are equal."""
    widths, found = raw.get("intermediate_size"), split_rope(raw)
    if isinstance(widths, list) and widths and all(width == widths[0] for width in widths):
        return {**found, "intermediate_size": widths[0]}
    return found


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """All but every fifth layer have the window, unless the file names them."""
    values.require(use_bidirectional_attention=False, altup_correct_scale=True)
    for key, only in (("altup_num_inputs", STREAMS), ("altup_active_idx", 0)):
        if values.get(key) not in (None, only):
            raise UnsupportedModelError(f"{values.source}: {key} other than {only} is not supported")
    if config.hidden_size % _COLUMNS:
        raise values.error("hidden_size", f"a multiple of {_COLUMNS}")
    windows = read_windows(values, config.num_hidden_layers, lambda layer: (layer + 1) % 5 != 0)
    return replace(
        with_attention_bias(values, config),
        sliding_windows=windows,
        sliding_rope_theta=read_sliding_theta(values, values.number("rope_local_base_freq", 1.001, 1e30)),
        qk_norm="head",
        attention_scale=1.0,
        logits_softcap=values.optional_number("final_logit_softcapping", 1e-3, 1e9),
        embedding_multiplier=config.hidden_size**0.5,
        varied=_read_varied(values, config, windows),
        altup=AltUp(values.integer("laurel_rank", 1, 1 << 16), _read_cutoffs(values, config.num_hidden_layers)),
    )


def _read_varied(values: ConfigValues, config: ModelConfig, windows: tuple[int, ...]) -> VariedLayers:
    ids = values.integer("vocab_size_per_layer_input", 1, MAX_VOCAB_SIZE)
    return VariedLayers(
        wide=(),
        wide_head_dim=config.head_dim,
        wide_key_value_heads=config.num_key_value_heads,
        keys_as_values=False,
        sources=gemma4.read_sources(values, windows),
        wide_mlps=(),
        input_size=values.integer("hidden_size_per_layer_input", 1, 1 << 16),
        input_ids=ids,
    )


def _read_cutoffs(values: ConfigValues, layers: int) -> tuple[float | None, ...]:
    """Read `AltUp.cutoffs` from the shares of gates that are closed; without any, those of nine tenths and a half."""
    if values.get("activation_sparsity_pattern") is None:
        sparse = _SPARSE_LAYERS if layers > _SPARSE_LAYERS else 0
        shares = (_SPARSITY,) * sparse + (0.0,) * (layers - sparse)
    else:
        shares = values.numbers("activation_sparsity_pattern", layers, 0.0, 1 - 1e-6)
    return tuple(NormalDist().inv_cdf(share) if share > 0 else None for share in shares)


def linears(config: ModelConfig, names: TensorNames) -> list[Linear]:
    """List the linear layers: those of LAuReL, and those between embedding or last norm and the other streams."""
    D, L, (left, right) = config.hidden_size, config.num_hidden_layers, LAUREL
    assert config.altup is not None
    rank, laurel = config.altup.laurel_rank, f"{LAYER}laurel.linear_"
    inwards, outwards = (
        tuple(f"model.altup_{kind}projections.{stream}" for stream in range(STREAMS - 1)) for kind in ("", "unembed_")
    )
    return [
        *gemma4.linears(config, names),
        Linear(left, (f"{laurel}left",), (rank,), D, L),
        Linear(right, (f"{laurel}right",), (D,), rank, L),
        Linear("streams_proj", inwards, (D,) * len(inwards), D, None),
        *(Linear(name, (source,), (D,), D, None) for name, source in zip(STREAM_LINEARS, outwards)),
    ]


def norms(config: ModelConfig, names: TensorNames) -> list[Norm]:
    """List the norms, and the small matrices of streams, which are stored like them."""
    D, L, altup = config.hidden_size, config.num_hidden_layers, f"{LAYER}altup."
    vectors = (
        ("streams_router", "modality_router", STREAMS * D),
        ("predictions", "prediction_coefs", STREAMS**3),
        ("corrections", "correction_coefs", STREAMS**2),
        ("corrected_scale", "correct_output_scale", D),
    )
    return [
        *gemma4.norms(config, names),
        Norm("laurel_norm", f"{LAYER}laurel.post_laurel_norm", D, L),
        Norm("streams_norm", f"{altup}router_norm", D, L, scale=1 / D),
        *(Norm(name, f"{altup}{theirs}", size, L, padded=False, flattened=True) for name, theirs, size in vectors),
    ]


_SPARSE_LAYERS, _SPARSITY = 10, 0.95  # of models whose file says nothing of it
DEFAULTS = {
    "num_key_value_heads": 2,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "sliding_window": 512,
    "final_logit_softcapping": 30.0,
    "vocab_size_per_layer_input": 262144,
    "hidden_size_per_layer_input": 256,
    "num_kv_shared_layers": 15,
    "laurel_rank": 64,
}

GEMMA3N = Family(
    "Gemma3nForCausalLM",
    "gemma3n_text",
    "Gemma 3n (text)",
    "four residual streams (AltUp), LAuReL, shared keys and values, embeddings for each layer, sparse gates, windows",
    DEFAULTS,
    read,
    FOUR_NORMS,
    linears,
    norms,
    names={"hidden_act": "hidden_activation"},
    prepared=prepared,
)
