"""A model's linear layers and norms, and the names of their tensors in the checkpoint."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Linear:
    """Linear layers of one kind, and the checkpoint's weights that make up the rows of each, top to bottom.

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
        Row of its only source at which it begins.
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
    """Gains of the RMS norms of one kind; padded as the columns of the linear that follows, those of heads are not."""

    name: str
    source: str
    size: int
    layers: int | None
    padded: bool = True
