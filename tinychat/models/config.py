"""A checkpoint's `config.json` as a frozen, validated `ModelConfig`; fields keep the file's key names."""

from dataclasses import dataclass

from tinychat.errors import CheckpointError, UnsupportedModelError
from tinychat.json_file import one_line
from tinychat.models.config_values import MAX_VOCAB_SIZE, ConfigValues
from tinychat.models.rope_scaling import MAX_POSITIONS, RopeScaling, read_rope, read_rotary_dim, refuse_partial_rotary

MAX_HEAD_DIM = 4096


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The architecture of one model.

    Attributes
    ----------
    architecture : str
        As `config.json` names it: see `tinychat.models.families`.
    rope_theta, rope_scaling
        Base of the rotary embedding and its scaling; None is the plain embedding.
    qkv_bias, o_bias, mlp_bias : bool
        Whether q/k/v, o, and gate/up/down projections have a bias.
    qk_norm : bool
        Whether each head of queries and keys is RMS-normalised before the rotation.
    rotary_dims : tuple of int
        One per layer: how many channels of each head are rotated, the first ones.
    sliding_windows : tuple of int
        One per layer: how many positions a query sees, its own included; 0 is all of them.
    """

    architecture: str
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    rotary_dims: tuple[int, ...]
    sliding_windows: tuple[int, ...]

    @property
    def rotary_dim(self) -> int:
        """Channels of each head that are rotated, in the layers that do so."""
        return max(self.rotary_dims)


def read_common(values: ConfigValues, architecture: str, partial_rotary: bool) -> ModelConfig:
    """Read the values that all families share; the other fields become neutral, as `Family.read` expects them.

    Parameters
    ----------
    values : ConfigValues
    architecture : str
    partial_rotary : bool
        Whether this architecture may rotate only a part of each head.

    Raises
    ------
    UnsupportedModelError
        If activation, rotary embedding or a quantization are not implemented.
    CheckpointError
        If a value is missing, of the wrong type, out of range or contradicts another.
    """
    _refuse_unsupported(values)
    for key in ("bos_token_id", "eos_token_id"):
        values.check_token_ids(key)
    heads = values.integer("num_attention_heads", 1, 4096)
    num_hidden_layers = values.integer("num_hidden_layers", 1, 4096)
    head_dim = _read_head_dim(values, heads)
    if not partial_rotary:
        refuse_partial_rotary(values)
    rotary_dim = read_rotary_dim(values, head_dim)
    rope_theta, rope_scaling = read_rope(values, rotary_dim)
    return ModelConfig(
        architecture=architecture,
        hidden_size=values.integer("hidden_size", 1, 1 << 20),
        intermediate_size=values.integer("intermediate_size", 1, 1 << 22),
        num_hidden_layers=num_hidden_layers,
        num_attention_heads=heads,
        num_key_value_heads=_read_kv_heads(values, heads),
        head_dim=head_dim,
        vocab_size=values.integer("vocab_size", 1, MAX_VOCAB_SIZE),
        max_position_embeddings=values.integer("max_position_embeddings", 1, MAX_POSITIONS),
        rms_norm_eps=values.number("rms_norm_eps", 1e-30, 1.0),
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        tie_word_embeddings=values.flag("tie_word_embeddings", False),
        qkv_bias=False,
        o_bias=False,
        mlp_bias=False,
        qk_norm=False,
        rotary_dims=(rotary_dim,) * num_hidden_layers,
        sliding_windows=(0,) * num_hidden_layers,
    )


def _refuse_unsupported(values: ConfigValues) -> None:
    hidden_act = values.optional_text("hidden_act")
    if hidden_act != "silu":
        raise UnsupportedModelError(
            f"{values.source}: hidden_act {one_line(str(hidden_act))!r} is not supported; supported is 'silu'"
        )
    quantization = values.optional_section("quantization_config")
    if quantization is not None:
        method = one_line(str(quantization.get("quant_method") or "unnamed"))
        raise UnsupportedModelError(
            f"{quantization.source} ({method}) is not supported; use the unquantized checkpoint"
        )


def _read_kv_heads(values: ConfigValues, heads: int) -> int:
    kv_heads = values.optional_integer("num_key_value_heads", 1, heads) or heads
    if heads % kv_heads:
        raise values.error("num_key_value_heads", f"a divisor of num_attention_heads ({heads})")
    return kv_heads


def _read_head_dim(values: ConfigValues, heads: int) -> int:
    head_dim = values.optional_integer("head_dim", 4, MAX_HEAD_DIM)
    if head_dim is None:
        hidden_size = values.integer("hidden_size", 1, 1 << 20)
        if hidden_size % heads:
            raise values.error("hidden_size", f"a multiple of num_attention_heads ({heads})")
        head_dim = hidden_size // heads
    if head_dim % 2 or not 4 <= head_dim <= MAX_HEAD_DIM:
        raise CheckpointError(
            f"{values.source}: head_dim is {head_dim}; expected an even number from 4 to {MAX_HEAD_DIM}"
        )
    return head_dim


def windows_of_types(values: ConfigValues, window: int | None, layers: int) -> tuple[int, ...]:
    """Return the window of each layer that ``layer_types`` says has one; 0 for the others.

    Raises
    ------
    UnsupportedModelError
        If a layer is of another type.
    CheckpointError
        If it is not a list of `layers` names, or a layer needs a window and there is none.
    """
    layer_types = values.get("layer_types")
    if not isinstance(layer_types, list) or len(layer_types) != layers:
        raise values.error("layer_types", f"a list of {layers} names, one per layer")
    for name in layer_types:
        if name not in ("full_attention", "sliding_attention"):
            raise UnsupportedModelError(
                f"{values.source}: layer type {one_line(repr(name))} is not supported;"
                " supported are full_attention, sliding_attention"
            )
    if window is None and "sliding_attention" in layer_types:
        raise values.error("sliding_window", "a window, with use_sliding_window true, for layer_types")
    return tuple(window or 0 if name == "sliding_attention" else 0 for name in layer_types)
