"""Residual streams beside the one that all models have, of which each layer predicts and corrects all (Gemma 3n)."""

from dataclasses import dataclass

STREAMS = 4
LAUREL = "laurel_left", "laurel_right"
STREAM_LINEARS = "stream_1_proj", "stream_2_proj", "stream_3_proj"  # what the last norm gets of the other streams


@dataclass(frozen=True, slots=True)
class AltUp:
    """The numbers of a model with four streams, whose layers have LAuReL beside attention."""

    laurel_rank: int
    # By layer, in standard deviations above the mean, where gates are cut off; None: they are not.
    cutoffs: tuple[float | None, ...]
