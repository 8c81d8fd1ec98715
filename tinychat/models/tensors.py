"""What makes up a model's weights: its linear layers and norms, by the names that the checkpoint has for them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Linear:
    """One stack of linear layers: the checkpoint's weights that make up its rows, top to bottom.

    Attributes
    ----------
    name : str
        Its field of `engine.forward.Layer` or `Parameters`.
    sources : tuple of str
        Names in the checkpoint without ``.weight``; ``{}`` stands for the layer.
    rows : tuple of int
        Of each source.
    columns : int
    layers : int or None
        None: outside the decoder's layers.
    bias : bool
    first : int
        Row of its only source that it begins at.
    """

    name: str
    sources: tuple[str, ...]
    rows: tuple[int, ...]
    columns: int
    layers: int | None
    bias: bool = False
    first: int = 0


@dataclass(frozen=True)
class Norm:
    """Gains of one stack of RMS norms; padded like the columns of the linear that follows, heads not at all."""

    name: str
    source: str
    size: int
    layers: int | None
    padded: bool = True
