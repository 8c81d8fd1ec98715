"""A checkpoint's `config.json` as a frozen, validated `ModelConfig`; fields have the file's key names."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tinychat.errors import CheckpointError, UnsupportedModelError
from tinychat.json_file import one_line
from tinychat.models.altup import AltUp
from tinychat.models.block_mixtures import BlockMixtures
from tinychat.models.compressed import CompressedHeads
from tinychat.models.config_values import MAX_VOCAB_SIZE, ConfigValues
from tinychat.models.delta_net import DeltaNet
from tinychat.models.drafter import Drafter
from tinychat.models.eagle import Eagle
from tinychat.models.experts import Experts
from tinychat.models.latent import Latents
from tinychat.models.loops import Loops
from tinychat.models.mamba import Mamba
from tinychat.models.normalized import Normalized
from tinychat.models.rope_scaling import MAX_POSITIONS, RopeScaling, read_rope, read_rotary_dim, refuse_partial_rotary
from tinychat.models.selective import SelectiveScan
from tinychat.models.state_layers import LANES, StateLayers
from tinychat.models.varied_layers import VariedLayers

MAX_HEAD_DIM = 4096
# Ways of quantization whose checkpoints are read: see `tinychat.checkpoint.packed`, `ternary` and `small_floats`.
PACKED = ("gptq", "awq", "compressed-tensors", "mlx", "mxfp4", "bitnet", "fp8", "fbgemm_fp8", "modelopt")
# Of the names that transformers has for activations, those that are implemented, and as what.
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The architecture of one model; fields without a note are those of its `config.json`.

    The family that alone has a part is in brackets behind it.
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
    rms_norm_eps: float  # added to the mean square, or variance, in all norms but those of `post_norm_eps`
    rope_theta: float  # base of the rotary embedding
    rope_scaling: RopeScaling | None  # None is the plain embedding
    tie_word_embeddings: bool  # also where there is no output matrix
    qkv_bias: bool  # biases of the projections
    o_bias: bool
    mlp_bias: bool
    # RMS norm of queries and keys: of each "head", of the "width" of all heads, "rotated": of each head behind the
    # rotation (Hunyuan); or layer norms of the "heads", with gains for each (StableLM); None: they have none.
    qk_norm: str | None
    rotary_dims: tuple[int, ...]  # by layer, the channels of each head that are rotated, the first ones
    sliding_windows: tuple[int, ...]  # by layer, the positions that a query sees, its own included; 0 is all of them
    attention_scale: float  # multiplies scores before the softmax
    hidden_act: str = "silu"  # activation of the MLP, one of the values of `ACTIVATIONS`, or "xielu" (Apertus)
    sliding_rope_theta: float | None = None  # base in layers with a window, which have no scaling; None: the same
    temperature_beta: float = 0.0  # queries at position p are times 1 + beta * ln(1 + floor(p / temperature_length))
    temperature_length: int = 1
    log_temperature_length: int = 0  # queries at p are times max(1, ln(1 + p) / ln(length)); 0: they are not (Qwen 1)
    alibi_slopes: tuple[float, ...] = ()  # by head, the decrease of scores by position of distance (ALiBi)
    distance_biases: bool = False  # by head, numbers that are added to scores by buckets of distance (MPNet)
    learned_positions: bool = False  # a vector for each position up to `max_position_embeddings`, the last possible
    attention_softcap: float | None = None  # bound of scores, by tanh
    logits_softcap: float | None = None  # bound of logits, by tanh
    layer_norm: bool = False  # layer norms, with mean and bias, instead of RMS norms
    gated: bool = True  # gates in the MLP
    parallel: bool = False  # the MLP reads the input of attention instead of its output
    separate_mlp_norm: bool = True  # a parallel MLP has a norm of its own
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0  # of the outputs of attention and MLP before they are added to the residual
    logits_multiplier: float = 1.0
    unit_outputs: bool = False  # each row of the output matrix is brought to length 1 (Baichuan 2)
    sinks: bool = False  # each head has a score that attention's softmax counts beside those of the keys
    swiglu_alpha: float = 1.0  # steepness of clamped gates (gpt-oss)
    swiglu_limit: float | None = None  # bound of clamped gates and their inputs; None: as `hidden_act` (gpt-oss)
    # Soft caps of gates, but not in their sigmoid, and of their inputs (Inkling 2).
    swiglu_caps: tuple[float, float] | None = None
    experts: Experts | None = None
    conv_layers: tuple[int, ...] = ()  # the layers that have a short convolution instead of attention (LFM2)
    conv_L_cache: int = 0  # positions that a convolution sees, its own included: the window of those layers
    gated_attention: bool = False  # queries come with gates, whose sigmoid multiplies what attention gives
    gated_heads: bool = False  # the same with one gate for each head, of a linear of its own
    softplus_gates: bool = False  # of heads: their softplus multiplies, not their sigmoid (Laguna)
    other_heads: int = 0  # query heads of some layers; 0: all have `num_attention_heads` (Laguna)
    other_heads_at: tuple[int, ...] = ()  # these layers
    latents: Latents | None = None  # the cache holds one latent for all heads (MLA), of which values are the last part
    delta_net: DeltaNet | None = None  # the layers that have a state instead of attention
    mamba: Mamba | None = None  # the same
    selective: SelectiveScan | None = None  # the same (Jamba)
    compressed: CompressedHeads | None = None  # queries and keys are convolved: layers have a state, too (ZAYA)
    mixtures: BlockMixtures | None = None  # layers read mixtures of blocks, and have a state, too (Inkling 2)
    # The layers of an MLP alone, without attention or a part that replaces it; where there are any, others have no MLP
    # (Nemotron-H).
    mlp_alone: tuple[int, ...] = ()
    linear_multipliers: tuple[tuple[str, tuple[float, ...]], ...] = ()  # `Linear.scales` by linear (Falcon-H1)
    normed_after: tuple[int, ...] = ()  # those normed after attention and MLP, others before (OLMo Hybrid)
    residual_scales: bool = False  # embedding, branches, residual stream have a scale and shift for each channel (ZAYA)
    sub_norms: bool = False  # norms before the last linear of attention, and of an MLP (BitNet)
    post_norm_eps: float | None = None  # the same of norms behind attention and MLP; None: as others (Muse Glimmer)
    stream_norms: bool = False  # norms behind attention and MLP are of the residual stream that these are added to
    embedded_ids: int = 0  # ids of the embedding, if more than `vocab_size`: the rest cannot be written (Apertus)
    image_token_id: int | None = None  # the token whose embedding rows of an image replace; None: the model sees none
    image_input_id: int = 0  # the token whose embeddings for layers parts of an image have (Gemma 4)
    deepstack_layers: int = 0  # the first layers, to whose outputs other parts of these rows are added (Qwen3-VL)
    rotary_axes: tuple[int, ...] = ()  # by pair of channels, the axis that turns it: see `models.rotary_axes`; (): one
    joint_tokens: int = 0  # tokens of an image, each of which attends to all of them; 0: to earlier ones (Gemma 3)
    projected_embedding: bool = False  # one of fewer columns is projected to embedding and output matrix (OPT)
    is_draft_head: bool = False  # it reads the hidden states of another model: `models.draft_head`
    drafter: Drafter | None = None  # how it reads another model's cache and hidden states; None: it does not
    eagle: Eagle | None = None  # how it reads another model's hidden states behind several layers (EAGLE-3)
    varied: VariedLayers | None = None  # how layers differ in heads, keys, values and MLPs; None: they do not
    altup: AltUp | None = None  # residual streams beside the one that all models have (Gemma 3n)
    loops: Loops | None = None  # the layers that run several times; None: each runs once
    normalized: Normalized | None = None  # the residual stream has length 1, and branches draw it towards them (Dory)
    position_grid: int = 0  # patches a side whose learned positions are fitted to a tile's grid; 0: to none (SigLIP 2)
    position_axes: int = 0  # patches a side with a learned vector by row and by column, which are added (Gemma 4)
    position_corners: bool = False  # the corners of both grids have the same vectors (Qwen3-VL)
    alternating_turns: bool = False  # patches turn by row and by column with every other frequency each (Pixtral)
    patch_columns: int = 0  # numbers of a patch, which a vision tower reads instead of ids; 0: it reads ids (SigLIP)
    clipped_linears: bool = False  # linears have bounds of inputs and outputs (Gemma 4's vision tower)
    token_kinds: int = 1  # the vectors of positions are there for each kind of text: a query's, a document's
    bidirectional: bool = False  # tokens attend to later ones, too, as far as to earlier ones: no text can be written
    embedding_dim: int = 0  # numbers that hidden states are projected to for vectors; 0: none (EmbeddingGemma 2)
    writes: bool = True  # False for a model that gives embeddings: it has no output matrix, or one that means nothing

    @property
    def trained_length(self) -> int:
        """Positions that the model was trained on, those that its rotary scaling adds included."""
        stretched = 0
        if self.rope_scaling is not None:
            # Where the scaling names no training length, `max_position_embeddings` is the stretched one.
            stretched = int(self.rope_scaling.factor * self.rope_scaling.original_max_position_embeddings)
        return max(self.max_position_embeddings, stretched)

    @property
    def places_patches(self) -> bool:
        """Whether a vision tower gets the vectors of its patches' positions with them."""
        return self.position_grid > 0 or self.position_axes > 0

    @property
    def value_dim(self) -> int:
        """Channels of a value in the cache."""
        return self.latents.kv_lora_rank if self.latents else self.head_dim

    @property
    def vector_size(self) -> int:
        """Numbers of a final hidden state as vectors of texts have it."""
        return self.embedding_dim or self.hidden_size

    @property
    def rotary_dim(self) -> int:
        """Channels of each head that are rotated, in the layers that do so; where angles differ, of the first set."""
        first = [dim for dim, angles in zip(self.rotary_dims, self.angle_sets) if not angles]
        return max(first or self.rotary_dims)

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """The layers that have attention."""
        states = () if self.recurrence and self.recurrence.beside_attention else self.state_layers
        others = {*self.conv_layers, *states, *self.mlp_alone}
        return tuple(layer for layer in range(self.num_hidden_layers) if layer not in others)

    @property
    def first_heads_at(self) -> tuple[int, ...]:
        """The layers whose attention has `num_attention_heads`."""
        return tuple(layer for layer in self.attention_layers if layer not in self.other_heads_at)

    @property
    def dense_layers(self) -> tuple[int, ...]:
        """The layers whose MLP has no experts."""
        sparse = self.experts.layers if self.experts else ()
        return tuple(layer for layer in self.mlp_alone or range(self.num_hidden_layers) if layer not in sparse)

    @property
    def state_layers(self) -> tuple[int, ...]:
        """The layers whose past is a state."""
        return self.recurrence.layers if self.recurrence else ()

    @property
    def layer_runs(self) -> tuple[int, ...]:
        """The layers in the order in which they run, each as often as it does."""
        return self.loops.layer_runs(self.num_hidden_layers) if self.loops else tuple(range(self.num_hidden_layers))

    @property
    def runs_per_layer(self) -> float:
        """How often a layer runs for each token, on average."""
        return len(self.layer_runs) / self.num_hidden_layers

    @property
    def recurrence(self) -> StateLayers | None:
        """The sizes of these layers, None without any."""
        return self.delta_net or self.mamba or self.selective or self.compressed or self.mixtures

    @property
    def choice(self) -> Experts | None:
        """The experts, or the clusters of a drafter's output matrix: parts of which each token passes a few."""
        return self.experts or (self.drafter.clusters if self.drafter else None)

    @property
    def larger_size(self) -> int | None:
        """Hidden size of the model whose embedding a drafter reads; None for a model that is no drafter."""
        return self.drafter.hidden_size if self.drafter else self.hidden_size if self.eagle else None

    @property
    def cache_layers(self) -> tuple[int, ...]:
        """For each layer of the KV cache, the model's layer that it belongs to.

        Attention has one, and none where it reads another layer's; a convolution as many as hold `hidden_size` numbers
        of a position as keys and values; a layer with a state none. Those of wide heads are the last. A layer that runs
        several times has one for each. Of a drafter they are the larger model's. A text whose tokens attend to later
        ones runs in one step, layer by layer: there, layers with heads of one size share one, that of the last.
        """
        if self.drafter is not None:
            return tuple(range(self.drafter.narrow_layers + self.drafter.wide_layers))
        last = -1 if self.bidirectional else 0
        if self.varied is not None:
            return self.varied.owners(self.varied.narrow)[last:] + self.varied.owners(self.varied.wide)[last:]
        if self.bidirectional:
            return self.attention_layers[last:]
        of_convolution = -(-self.hidden_size // (2 * self.num_key_value_heads * self.head_dim))
        counts = dict.fromkeys(self.conv_layers, of_convolution) | dict.fromkeys(self.attention_layers, 1)
        return tuple(layer for layer in self.layer_runs for _ in range(counts.get(layer, 0)))

    @property
    def cache_shapes(self) -> tuple[tuple[int, int, int], ...]:
        """Layers of the KV cache, their heads, and the size of these, for each size there is; the order is theirs."""
        layers, wide = len(self.cache_layers), 0
        if self.drafter is not None:
            wide = self.drafter.wide_layers
        elif self.varied is not None:
            wide = sum(layer in self.varied.wide for layer in self.cache_layers)
        narrow = layers - wide, self.num_key_value_heads, self.head_dim
        if self.varied is None or not wide:
            return (narrow,)
        return narrow, (wide, self.varied.wide_key_value_heads, self.varied.wide_head_dim)

    def cache_layer(self, index: int) -> int:
        """Return the first layer of the KV cache that a layer reads in one of `layer_runs`; 0 without any."""
        layer = self.layer_runs[index]
        if self.bidirectional:
            return len(self.cache_layers) - 1 if self.varied and layer in self.varied.wide else 0
        if self.loops is not None:
            return index
        if self.drafter is not None:
            assert self.varied is not None
            return len(self.cache_layers) - 1 if layer in self.varied.wide else self.drafter.narrow_layers - 1
        source = self.varied.sources[layer] if self.varied else layer
        return self.cache_layers.index(source) if source in self.cache_layers else 0

    @property
    def angle_sets(self) -> tuple[int, ...]:
        """By layer, the set of rotary angles; 1 is that of `sliding_rope_theta`."""
        return tuple(int(window > 0 and self.sliding_rope_theta is not None) for window in self.sliding_windows)


def read_common(values: ConfigValues, architecture: str, partial_rotary: bool) -> ModelConfig:
    """Read the values that all families share; the other fields become neutral, as `Family.read` expects them."""
    _refuse_quantized(values)
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
        qk_norm=None,
        rotary_dims=(rotary_dim,) * num_hidden_layers,
        sliding_windows=(0,) * num_hidden_layers,
        attention_scale=head_dim**-0.5,
        hidden_act=_read_activation(values),
        bidirectional=not values.flag("is_causal", True),
    )


def _read_activation(values: ConfigValues) -> str:
    hidden_act = values.optional_text("hidden_act") or "silu"
    if hidden_act not in ACTIVATIONS:
        raise UnsupportedModelError(
            f"{values.source}: {values.name_of('hidden_act')} {one_line(hidden_act)!r} is not supported;"
            f" supported are {', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[hidden_act]


def _refuse_quantized(values: ConfigValues) -> None:
    if values.get("hadamard_config") is not None:
        raise UnsupportedModelError(f"{values.source}: hadamard_config is not supported; use another checkpoint")
    quantization = values.optional_section("quantization_config")
    if quantization is not None:
        # mlx names no method.
        method = quantization.get("quant_method") or ("mlx" if quantization.get("bits") else "unnamed")
        if method not in PACKED:
            raise UnsupportedModelError(
                f"{quantization.source} ({one_line(str(method))}) is not supported; use the unquantized checkpoint, or"
                f" one by {', '.join(PACKED)}"
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
        what = f"{values.name_of('head_dim')} is {head_dim}"
        raise CheckpointError(f"{values.source}: {what}; expected an even number from 4 to {MAX_HEAD_DIM}")
    return head_dim


def read_window(values: ConfigValues, switched: bool = False) -> int | None:
    """Read ``sliding_window``; None without one and, if `switched`, unless ``use_sliding_window`` is true."""
    if switched and not values.flag("use_sliding_window", False):
        return None
    return values.optional_integer("sliding_window", 1, MAX_POSITIONS)


def read_windows(
    values: ConfigValues, layers: int, is_windowed: Callable[[int], bool], switched: bool = False
) -> tuple[int, ...]:
    """Read the window of each layer, 0 for none: of those that ``layer_types`` names, else those of `is_windowed`."""
    window = read_window(values, switched)
    layer_types = read_layer_types(values, layers, ("full_attention", "sliding_attention"))
    if layer_types is None:
        return tuple(window or 0 if is_windowed(layer) else 0 for layer in range(layers))
    if window is None and "sliding_attention" in layer_types:
        raise values.error("sliding_window", "a window, with use_sliding_window true, for layer_types")
    return tuple(window or 0 if name == "sliding_attention" else 0 for name in layer_types)


def rotated_in_windows(config: ModelConfig, windows: tuple[int, ...]) -> ModelConfig:
    """Return the config of layers with these windows, of which those without one do not rotate."""
    rotary_dims = tuple(config.rotary_dim if window else 0 for window in windows)
    return replace(config, sliding_windows=windows, rotary_dims=rotary_dims)


def with_attention_bias(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Return the configuration with ``attention_bias``: all linears of attention have biases, or none."""
    bias = values.flag("attention_bias", False)
    return replace(config, qkv_bias=bias, o_bias=bias)


def with_gates(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Return the configuration with gates of attention for each channel: kernels gate whole vectors of a head."""
    if config.head_dim % LANES:
        raise values.error("head_dim", f"a multiple of {LANES}")
    return replace(config, gated_attention=True)


def check_state_layers(
    values: ConfigValues, config: ModelConfig, layers: Sequence[int], kinds: Sequence[str] = ()
) -> None:
    """Refuse what no model with a state in these layers has: another activation, layers of one kind only."""
    if config.hidden_act != "silu":
        raise values.error("hidden_act", '"silu"')
    if not 0 < len(layers) < config.num_hidden_layers:
        expected = f"; expected {kinds}" if kinds else ""
        raise UnsupportedModelError(f"{values.source}: layers of one kind only are not supported{expected}")


def read_layer_types(values: ConfigValues, layers: int, supported: Sequence[str]) -> list[str] | None:
    """Read ``layer_types``, one name per layer; None where the file has none."""
    found = values.get("layer_types")
    if found is None:
        return None
    if not isinstance(found, list) or len(found) != layers:
        raise values.error("layer_types", f"a list of {layers} names, one per layer")
    for name in found:
        if name not in supported:
            raise UnsupportedModelError(
                f"{values.source}: layer type {one_line(repr(name))} is not supported;"
                f" supported are {', '.join(supported)}"
            )
    return found
