"""A vision tower, its connector, and the values that models of all kinds have for them: see `models.vision`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tinychat.errors import UnsupportedModelError
from tinychat.json_file import one_line
from tinychat.models.config_values import ConfigValues
from tinychat.models.image_preparation import Preparation

# Columns of a connector: with these, its sums are exact (`images.connector`).
MOST_COLUMNS = 1 << 16
# What means of patches are less, and then times: `ConnectorParts.standard`.
STANDARD = ("bias", "scale")
# Squares of more patches would make narrow images too large: a row of them is as long as an image may be.
MOST_MERGED = 6
# transformers' value for files that do not tell how many patches a side are one image token.
SCALE_FACTOR = 2
# What transformers takes for keys that the section of a SigLIP tower lacks.
SIGLIP = {
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


@dataclass(frozen=True)
class ConnectorLinear:
    """A linear of a connector, by its name in the checkpoint and the model folder."""

    name: str
    rows: int
    columns: int
    bias: bool = False
    transposed: str = ""  # the checkpoint's name of its weight, if that is transposed there
    activated: bool = False  # its inputs are behind GELU


@dataclass(frozen=True)
class ConnectorParts:
    """The parts of a connector: a norm of its inputs, and linears.

    Each input is of a square of `scale_factor` by `scale_factor` patches: all of their numbers, with a layer norm if
    that has a name; or, if it `averages`, the means of these `times` a number, with an RMS norm, whose gains are 1 or,
    if it has a name, 1 and its numbers. Before it, means are less and times vectors whose names begin with `standard`.
    If it `merges`, each patch has an RMS norm, and the numbers of a square lie channel by channel (Mistral 3).
    """

    stem: str  # of the names of its tensors in the checkpoint
    scale_factor: int
    linears: tuple[ConnectorLinear, ...]
    norm: str = ""
    norm_eps: float = 1e-5
    averages: bool = False
    times: float = 1.0
    standard: str = ""
    merges: bool = False
    layer: int = 0  # of the tower, behind which it reads hidden states; 0: behind all, and the last norm

    @property
    def prefix(self) -> str:
        """The beginning of the names of its tensors in a model folder."""
        return f"{self.layer}." if self.layer else ""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of its tensors by their names behind `stem` and `prefix`."""
        columns = self.linears[0].columns // (self.scale_factor**2 if self.merges else 1)
        found: dict[str, tuple[int, ...]] = {}
        if self.norm:
            parts = ("weight",) if self.averages or self.merges else ("weight", "bias")
            found |= {f"{self.norm}.{part}": (columns,) for part in parts}
        if self.standard:
            found |= {f"{self.standard}{part}": (columns,) for part in STANDARD}
        for linear in self.linears:
            found[f"{linear.name}.weight"] = (linear.rows, linear.columns)
            if linear.bias:
                found[f"{linear.name}.bias"] = (linear.rows,)
        return found


VisionParts = tuple[Preparation, Mapping[str, object], tuple[ConnectorParts, ...]]
"""The preparation of images, the tower's `config.json`, and the connectors."""


def other_preparation(values: ConfigValues) -> UnsupportedModelError:
    """Return the error about images that are prepared as for a model of another kind."""
    return UnsupportedModelError(f"{values.source}: images prepared as for another model are not supported")


def require_known(values: ConfigValues, **known: tuple[object, ...]) -> None:
    """Refuse values that are none of the given ones."""
    for key, found in ((key, values.get(key)) for key in known):
        if found not in known[key]:
            raise UnsupportedModelError(f"{values.source}: {key} {one_line(repr(found), 40)} is not supported")


def vision_section(values: ConfigValues) -> ConfigValues:
    """Return the tower's section, empty where there is none."""
    return values.optional_section("vision_config") or ConfigValues({}, f"{values.source}: vision_config")


def read_theta(section: ConfigValues) -> float | None:
    """Read the base of the angles by which a tower rotates; None where its section does not say."""
    rope = section.optional_section("rope_parameters")
    return rope.optional_number("rope_theta", 1.001, 1e30) if rope else None


def read_tower(
    values: ConfigValues, defaults: Mapping[str, object], channels: str = "num_channels"
) -> tuple[ConfigValues, int]:
    """Return the values of the tower's section that have defaults, and its patches' size.

    channels : the key of their number, where there is one.
    """
    section = vision_section(values)
    found = {key: default if section.get(key) is None else section.get(key) for key, default in defaults.items()}
    tower = ConfigValues(found, f"{values.source}: vision_config")
    if channels in defaults:
        tower.integer(channels, 3, 3)
    return tower, tower.integer("patch_size", 1, 1 << 10)


def tower_config(architecture: str, model_type: str, values: ConfigValues) -> dict[str, object]:
    """Return a tower's `config.json`."""
    own = {key: values.get(key) for key in values.keys()}
    return {"architectures": [architecture], "model_type": model_type, **own}
