"""How a model sees images: its vision tower, and the connector that makes rows of the text model of what that gives.

A model folder has the tower in the subfolder ``vision``, a model folder of its own, and beside its weights those of the
connector, in ``connector.safetensors``. Models that were converted without it stay text alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tinychat.errors import UnsupportedModelError
from tinychat.json_file import one_line, read_json_object
from tinychat.models.config_values import MAX_VOCAB_SIZE, ConfigValues
from tinychat.models.deepstack import TOWER_LAYERS
from tinychat.models.image_preparation import (
    PREPARATION_FILES,
    OneTile,
    Preparation,
    ShapedTiles,
    SquareTiles,
    WholeImage,
    read_preparation,
)
from tinychat.models.multimodal import (
    GEMMA3,
    LFM2_VL,
    MOST_JOINT_TOKENS,
    image_token_of,
    joint_tokens_of,
    text_part,
    wrapper_of,
)
from tinychat.models.rope_scaling import DEFAULT_ROPE_THETA

VISION_FOLDER = "vision"
CONNECTOR = "connector.safetensors"
# Columns of a connector: with these, its sums are exact (`images.connector`).
MOST_COLUMNS = 1 << 16
# What transformers takes for keys that a tower's section lacks.
_SIGLIP = {
    "hidden_size": 1152,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 32,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}
_GEMMA3 = {
    **_SIGLIP,
    "hidden_size": 768,
    "num_attention_heads": 12,
    "patch_size": 16,
}
_SIGLIP2 = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_channels": 3,
    "num_patches": 256,
    "patch_size": 16,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}
_QWEN_VISION = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "depth": 27,
    "num_heads": 16,
    "in_channels": 3,
    "num_position_embeddings": 2304,
    "patch_size": 16,
    "hidden_act": "gelu_pytorch_tanh",
}
_SCALE_FACTOR, _PROJECTOR_SIZE, _QWEN_OUT_SIZE = 2, 2560, 3584
# Squares of more patches would make narrow images too large: see `WholeImage.most_patches`.
_MOST_MERGED = 6
_TOKENS = "mm_tokens_per_image"


@dataclass(frozen=True)
class ConnectorLinear:
    """A linear of a connector, by its name in the checkpoint and the model folder."""

    name: str
    rows: int
    columns: int
    bias: bool = False
    transposed: str = ""  # the checkpoint's name of its weight, if that is transposed there


@dataclass(frozen=True)
class ConnectorParts:
    """The parts of a connector: a norm of its inputs, if that has a name, and linears, with GELU between them.

    Each input is of a square of `scale_factor` by `scale_factor` patches: all of their numbers or, if it `averages`,
    the means of these. The norm is a layer norm or, of means, an RMS norm with gains of 1 and its numbers.
    """

    stem: str  # of the names of its tensors in the checkpoint
    scale_factor: int
    linears: tuple[ConnectorLinear, ...]
    norm: str = ""
    norm_eps: float = 1e-5
    averages: bool = False
    layer: int = 0  # of the tower, behind which it reads hidden states; 0: behind all, and the last norm

    @property
    def prefix(self) -> str:
        """The beginning of the names of its tensors in a model folder."""
        return f"{self.layer}." if self.layer else ""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of its tensors by their names behind `stem` and `prefix`."""
        columns = self.linears[0].columns
        found: dict[str, tuple[int, ...]] = {}
        if self.norm:
            parts = ("weight",) if self.averages else ("weight", "bias")
            found |= {f"{self.norm}.{part}": (columns,) for part in parts}
        for linear in self.linears:
            found[f"{linear.name}.weight"] = (linear.rows, linear.columns)
            if linear.bias:
                found[f"{linear.name}.bias"] = (linear.rows,)
        return found


@dataclass(frozen=True)
class Vision:
    """How a model sees images.

    The connector makes a row of the text model, of `text_size` numbers, of each square of patches. Others do so with
    what hidden states are behind some layers of the tower (DeepStack).
    """

    wrapper: str  # the model's architecture
    image_token_id: int
    preparation: Preparation
    tower: Mapping[str, object]  # the tower's `config.json`
    connector: ConnectorParts
    text_size: int
    others: tuple[ConnectorParts, ...] = ()

    @property
    def row_size(self) -> int:
        """Numbers of an image token, of which the text model takes `text_size` at a time."""
        return self.text_size * (1 + len(self.others))

    @property
    def connector_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the tensors of all connectors by their names in a model folder."""
        parts = (self.connector, *self.others)
        return {f"{each.prefix}{name}": shape for each in parts for name, shape in each.shapes.items()}

    @property
    def scale_factor(self) -> int:
        """Patches a side of the squares that one image token stands for."""
        return self.connector.scale_factor

    @property
    def connector_bytes(self) -> int:
        """Size of the connectors' weights, float32."""
        return 4 * sum(math.prod(shape) for shape in self.connector_shapes.values())


def sees(folder: Path) -> bool:
    """Return whether a model folder has a vision tower."""
    return (folder / VISION_FOLDER / "config.json").is_file()


def read_vision(folder: Path) -> Vision | None:
    """Return how the model of a checkpoint or model folder sees images; None where text is all that it reads.

    Raises CheckpointError or UnsupportedModelError for values of its files that cannot be.
    """
    path = folder / "config.json"
    raw = read_json_object(path)
    wrapper, image_token = wrapper_of(raw), image_token_of(raw)
    is_prepared = any((folder / name).is_file() for name in PREPARATION_FILES)
    if wrapper is None or image_token is None or not is_prepared:
        return None
    given = {**raw, "image_token_id": image_token}
    text_size = ConfigValues(text_part(raw), str(path)).integer("hidden_size", 1, 1 << 20)
    read = _READERS.get(wrapper, _read_idefics3)
    preparation, tower, (connector, *others) = read(folder, given, text_size)
    image_token_id = ConfigValues(given, str(path)).integer("image_token_id", 0, MAX_VOCAB_SIZE - 1)
    return Vision(wrapper, image_token_id, preparation, tower, connector, text_size, tuple(others))


_Parts = tuple[Preparation, Mapping[str, object], tuple[ConnectorParts, ...]]


def _read_idefics3(folder: Path, raw: Mapping[str, object], text_size: int) -> _Parts:
    """Read the parts of a model whose tiles are all of one size, which is that of the tower's grid of positions."""
    values = ConfigValues({"scale_factor": _SCALE_FACTOR, **raw}, str(folder / "config.json"))
    tower, patch_size = _read_tower(values, _SIGLIP)
    grid = tower.integer("image_size", patch_size, 1 << 14) // patch_size
    scale_factor = values.integer("scale_factor", 1, grid)
    columns = tower.integer("hidden_size", 1, 1 << 20) * scale_factor**2
    if grid % scale_factor or columns > MOST_COLUMNS:
        limit = f"{MOST_COLUMNS} numbers in all"
        raise values.error("scale_factor", f"a divisor of the {grid} patches of a row, of which squares have {limit}")
    preparation = read_preparation(folder, patch_size, scale_factor)
    if not isinstance(preparation, SquareTiles) or preparation.tile_size // patch_size != grid:
        raise tower.error("image_size", "that of the tiles that images are prepared as")
    linear = ConnectorLinear("proj", text_size, columns)
    connector = ConnectorParts("connector.modality_projection.", scale_factor, (linear,))
    return preparation, _tower("SiglipVisionTower", "siglip_vision_model", tower), (connector,)


def _read_gemma3(folder: Path, raw: Mapping[str, object], text_size: int) -> _Parts:
    """Read the parts of a model that sees an image as one tile, whose tokens stand for the means of squares."""
    values = ConfigValues({**raw, _TOKENS: joint_tokens_of(raw)}, str(folder / "config.json"))
    tower, patch_size = _read_tower(values, _GEMMA3)
    image_size, size = tower.integer("image_size", patch_size, 1 << 14), tower.integer("hidden_size", 1, MOST_COLUMNS)
    grid, side = image_size // patch_size, math.isqrt(values.integer(_TOKENS, 1, MOST_JOINT_TOKENS))
    if side**2 != values.get(_TOKENS) or grid % side:
        raise values.error(_TOKENS, f"that of a square which divides the {grid} patches of a row")
    preparation = read_preparation(folder, patch_size, grid // side)
    if not isinstance(preparation, OneTile) or preparation.tile_size != image_size:
        raise tower.error("image_size", "that of the square that images are prepared as")
    linear = ConnectorLinear("mm_input_projection", text_size, size, transposed="mm_input_projection_weight")
    eps = tower.number("layer_norm_eps", 0, 1)
    stem, norm = "multi_modal_projector.", "mm_soft_emb_norm"
    connector = ConnectorParts(stem, grid // side, (linear,), norm, eps, averages=True)
    return preparation, _tower("SiglipVisionTower", "siglip_vision_model", tower), (connector,)


def _read_lfm2_vl(folder: Path, raw: Mapping[str, object], text_size: int) -> _Parts:
    """Read the parts of a model whose tiles have any grid of patches."""
    values = ConfigValues({"downsample_factor": _SCALE_FACTOR, **raw}, str(folder / "config.json"))
    tower, patch_size = _read_tower(values, _SIGLIP2)
    scale_factor = values.integer("downsample_factor", 1, 1 << 6)
    columns = tower.integer("hidden_size", 1, 1 << 20) * scale_factor**2
    if columns > MOST_COLUMNS:
        raise values.error("downsample_factor", f"squares of patches with {MOST_COLUMNS} numbers in all")
    preparation = read_preparation(folder, patch_size, scale_factor)
    if not isinstance(preparation, ShapedTiles):
        raise _other_preparation(values)
    for key, only in (("projector_hidden_act", "gelu"), ("vision_feature_layer", -1)):
        if values.get(key) not in (None, only):
            found = one_line(repr(values.get(key)), 40)
            raise UnsupportedModelError(f"{values.source}: {key} {found} is not supported")
    inner = values.optional_integer("projector_hidden_size", 1, MOST_COLUMNS) or _PROJECTOR_SIZE
    bias = values.flag("projector_bias", True)
    linears = ConnectorLinear("linear_1", inner, columns, bias), ConnectorLinear("linear_2", text_size, inner, bias)
    norm = "layer_norm" if values.flag("projector_use_layernorm", True) else ""
    connector = ConnectorParts("multi_modal_projector.", scale_factor, linears, norm)
    config = _tower("Siglip2VisionTower", "siglip2_vision_model", tower)
    return preparation, config | {"max_position_embeddings": preparation.most_patches}, (connector,)


def _read_qwen(folder: Path, raw: Mapping[str, object], text_size: int) -> _Parts:
    """Read the parts of a model that sees an image as one tile, whose tower rotates."""
    values = ConfigValues(raw, str(folder / "config.json"))
    tower, patch_size = _read_tower(values, _QWEN_VISION, "in_channels")
    section = values.optional_section("vision_config") or ConfigValues({}, tower.source)
    scale_factor = section.optional_integer("spatial_merge_size", 1, _MOST_MERGED) or _SCALE_FACTOR
    columns = tower.integer("hidden_size", 1, 1 << 20) * scale_factor**2
    if columns > MOST_COLUMNS:
        raise tower.error("hidden_size", f"squares of {scale_factor**2} patches with {MOST_COLUMNS} numbers in all")
    if (section.optional_integer("out_hidden_size", 1, 1 << 20) or _QWEN_OUT_SIZE) != text_size:
        raise section.error("out_hidden_size", f"the {text_size} numbers of a row of the text model")
    rope = section.optional_section("rope_parameters")
    theta = rope and rope.optional_number("rope_theta", 1.001, 1e30)
    preparation = read_preparation(folder, patch_size, scale_factor)
    if not isinstance(preparation, WholeImage):
        raise _other_preparation(values)
    linears = (
        ConnectorLinear("linear_fc1", columns, columns, True),
        ConnectorLinear("linear_fc2", text_size, columns, True),
    )
    config = _tower("QwenVisionTower", "qwen3_vl_vision", tower)
    config |= {"max_position_embeddings": preparation.most_patches, "rope_theta": theta or DEFAULT_ROPE_THETA}
    return preparation, config, (ConnectorParts("visual.merger.", scale_factor, linears),)


def _read_qwen3_vl(folder: Path, raw: Mapping[str, object], text_size: int) -> _Parts:
    """Read the same parts and those of connectors behind some layers of the tower."""
    preparation, config, (connector,) = _read_qwen(folder, raw, text_size)
    values = ConfigValues(raw, str(folder / "config.json"))
    section = values.optional_section("vision_config") or ConfigValues({}, values.source)
    key, depth = "deepstack_visual_indexes", ConfigValues(config, values.source).integer("depth", 1, 4096)
    layers = TOWER_LAYERS if section.get(key) is None else section.get(key)
    is_list = isinstance(layers, list) and all(type(layer) is int and 0 <= layer < depth for layer in layers)
    if not isinstance(layers, list) or not is_list or len(set(layers)) < len(layers):
        raise section.error(key, f"a list of layers from 0 to {depth - 1}")
    others = [
        replace(connector, stem=f"visual.deepstack_merger_list.{number}.", norm="norm", norm_eps=1e-6, layer=layer + 1)
        for number, layer in enumerate(layers)
    ]
    # The text model takes their rows in the order of the layers.
    return preparation, config, (connector, *sorted(others, key=lambda each: each.layer))


_READERS = {
    GEMMA3: _read_gemma3,
    LFM2_VL: _read_lfm2_vl,
    "Qwen3VLForConditionalGeneration": _read_qwen3_vl,
    "Qwen3VLMoeForConditionalGeneration": _read_qwen3_vl,
    "Qwen3_5ForConditionalGeneration": _read_qwen,
    "Qwen3_5MoeForConditionalGeneration": _read_qwen,
}


def _other_preparation(values: ConfigValues) -> UnsupportedModelError:
    return UnsupportedModelError(f"{values.source}: images prepared as for another model are not supported")


def _read_tower(
    values: ConfigValues, defaults: Mapping[str, object], channels: str = "num_channels"
) -> tuple[ConfigValues, int]:
    """Return the values of the tower's section that have defaults, and its patches' size.

    channels : the key of their number.
    """
    section = values.optional_section("vision_config") or ConfigValues({}, values.source)
    found = {key: default if section.get(key) is None else section.get(key) for key, default in defaults.items()}
    tower = ConfigValues(found, f"{values.source}: vision_config")
    tower.integer(channels, 3, 3)
    return tower, tower.integer("patch_size", 1, 1 << 10)


def _tower(architecture: str, model_type: str, values: ConfigValues) -> dict[str, object]:
    """Return a tower's `config.json`."""
    own = {key: values.get(key) for key in values.keys()}
    return {"architectures": [architecture], "model_type": model_type, **own}
