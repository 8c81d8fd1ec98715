"""A checkpoint's `config.json` as a frozen, validated `ModelConfig`; fields keep the file's key names."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tinychat.errors import CheckpointError, UnsupportedModelError
from tinychat.model.config_values import MAX_VOCAB_SIZE, ConfigValues
from tinychat.model.json_file import one_line, read_json_object
from tinychat.model.rope_scaling import MAX_POSITIONS, RopeScaling, read_rope

MAX_HEAD_DIM = 4096


@dataclass(frozen=True, slots=True)
class Family:
    """What sets one architecture apart: transformers' defaults, and which parameters it has.

    `defaults` stand for keys that the file lacks; a key that is present and null stays null.
    `qkv_bias` None means that the file's ``attention_bias`` decides, for o_proj as well.
    """

    model_type: str
    defaults: Mapping[str, object]
    qkv_bias: bool | None = None
    has_mlp_bias: bool = False
    qk_norm: bool = False


_COMMON = {"hidden_act": "silu", "rms_norm_eps": 1e-6}
_QWEN = {
    **_COMMON,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
    "max_window_layers": 28,
}

FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": Family(
        model_type="llama",
        defaults={**_COMMON, "max_position_embeddings": 2048},
        has_mlp_bias=True,
    ),
    "MistralForCausalLM": Family(
        model_type="mistral",
        defaults={
            **_COMMON,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "sliding_window": 4096,
        },
        qkv_bias=False,
    ),
    "Qwen2ForCausalLM": Family(model_type="qwen2", defaults=_QWEN, qkv_bias=True),
    "Qwen3ForCausalLM": Family(model_type="qwen3", defaults={**_QWEN, "head_dim": 128}, qk_norm=True),
}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The architecture of one model.

    Attributes
    ----------
    architecture : str
        One of `FAMILIES`.
    rope_theta, rope_scaling
        Base of the rotary embedding and its scaling; None is the plain embedding.
    qkv_bias, o_bias, mlp_bias : bool
        Whether q/k/v, o, and gate/up/down projections have a bias.
    qk_norm : bool
        Whether each head of queries and keys is RMS-normalised before the rotation.
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
    sliding_windows: tuple[int, ...]

    @classmethod
    def from_file(cls, path: Path) -> "ModelConfig":
        """Read a `config.json`; raises as `from_dict` does, and CheckpointError for an unreadable file."""
        return cls.from_dict(read_json_object(path), str(path))

    @classmethod
    def from_dict(cls, raw: Mapping[str, object], source: str) -> "ModelConfig":
        """Validate a parsed `config.json` of transformers 4 or 5.

        Parameters
        ----------
        raw : Mapping
            The JSON object; keys that are not needed are ignored.
        source : str
            The file's name, for errors.

        Raises
        ------
        UnsupportedModelError
            If architecture, activation, rotary embedding, layer types or a quantization are not implemented.
        CheckpointError
            If a value is missing, of the wrong type, out of range or contradicts another.
        """
        architecture = _read_architecture(ConfigValues(raw, source))
        family = FAMILIES[architecture]
        values = ConfigValues({**family.defaults, **raw}, source)
        _refuse_unsupported(values)
        for key in ("bos_token_id", "eos_token_id"):
            values.check_token_ids(key)
        heads = values.integer("num_attention_heads", 1, 4096)
        num_hidden_layers = values.integer("num_hidden_layers", 1, 4096)
        rope_theta, rope_scaling = read_rope(values)
        attention_bias = family.qkv_bias is None and values.flag("attention_bias", False)
        return cls(
            architecture=architecture,
            hidden_size=values.integer("hidden_size", 1, 1 << 20),
            intermediate_size=values.integer("intermediate_size", 1, 1 << 22),
            num_hidden_layers=num_hidden_layers,
            num_attention_heads=heads,
            num_key_value_heads=_read_kv_heads(values, heads),
            head_dim=_read_head_dim(values, heads),
            vocab_size=values.integer("vocab_size", 1, MAX_VOCAB_SIZE),
            max_position_embeddings=values.integer("max_position_embeddings", 1, MAX_POSITIONS),
            rms_norm_eps=values.number("rms_norm_eps", 1e-30, 1.0),
            rope_theta=rope_theta,
            rope_scaling=rope_scaling,
            tie_word_embeddings=values.flag("tie_word_embeddings", False),
            qkv_bias=bool(family.qkv_bias) or attention_bias,
            o_bias=attention_bias,
            mlp_bias=family.has_mlp_bias and values.flag("mlp_bias", False),
            qk_norm=family.qk_norm,
            sliding_windows=_read_sliding_windows(values, family.model_type, num_hidden_layers),
        )


def _read_architecture(values: ConfigValues) -> str:
    names = values.get("architectures")
    model_type = values.optional_text("model_type")
    if names is None and model_type is not None:
        names = [name for name, family in FAMILIES.items() if family.model_type == model_type] or [model_type]
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise values.error("architectures", 'a list such as ["LlamaForCausalLM"]')
    name = names[0]
    if name not in FAMILIES:
        raise UnsupportedModelError(
            f"{values.source}: architecture {one_line(name)!r} is not supported; supported are {', '.join(FAMILIES)}"
        )
    if model_type not in (None, FAMILIES[name].model_type):
        raise UnsupportedModelError(
            f"{values.source}: model_type {one_line(str(model_type))!r} with architecture {name!r} is not"
            f" supported; expected {FAMILIES[name].model_type!r}"
        )
    return name


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


def _read_sliding_windows(values: ConfigValues, model_type: str, layers: int) -> tuple[int, ...]:
    """Return the window of each layer by the family's own rule; llama has none, mistral one for all."""
    if model_type == "llama":
        return (0,) * layers
    window = values.optional_integer("sliding_window", 1, MAX_POSITIONS)
    if model_type == "mistral":
        return (window or 0,) * layers
    if not values.flag("use_sliding_window", False):
        window = None
    layer_types = values.get("layer_types")
    if layer_types is None:
        first = values.integer("max_window_layers", 0, MAX_POSITIONS)
        return tuple(window or 0 if layer >= first else 0 for layer in range(layers))
    return _windows_of_types(values, layer_types, window, layers)


def _windows_of_types(values: ConfigValues, layer_types: object, window: int | None, layers: int) -> tuple[int, ...]:
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
