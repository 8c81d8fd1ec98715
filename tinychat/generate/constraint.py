"""What the generation loop needs from a grammar: which tokens may come next."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]


class ConstraintState(Protocol):
    """Where one reply stands in its grammar."""

    @property
    def finished(self) -> bool:
        """Whether the reply is whole and nothing can follow."""
        ...

    def allowed(self) -> Mask:
        """Return which tokens may come next, bool [vocab_size]; stop tokens only where the reply may end."""
        ...

    def accept(self, token_id: int) -> None:
        """Take the token that was chosen."""
        ...


class Constraint(Protocol):
    """A grammar that replies must follow."""

    def start(self) -> ConstraintState:
        """Begin a reply."""
        ...
