"""A drafter: a small model that predicts the tokens after the next from what a larger model has computed.

Its layers have queries only, which attend to keys and values in the larger model's cache: those of its last layer of
each kind. Its input for a token is ``W (embedding of the token, hidden state before it)``, both the larger model's; a
second matrix makes of its own hidden state what stands there for the token after. The position stays that of the last
token that was chosen, so a drafter reads no prompt and has no cache (Gemma 4's assistants:
github.com/huggingface/transformers, models/gemma4_assistant).

Its output matrix may be in clusters of tokens, of which only those are read whose centroids score best: they are stored
and chosen like the experts of a mixture.
"""

from dataclasses import dataclass
from pathlib import Path

from tinychat.json_file import read_json_object
from tinychat.models.eagle import is_eagle
from tinychat.models.experts import Experts

# Values of `model_type`.
GEMMA4, GEMMA4_UNIFIED = "gemma4_assistant", "gemma4_unified_assistant"
# The linear that makes of its own hidden state what it reads for the next token.
STATE = "state_proj"
# Of the output matrix in clusters: the ids of their tokens.
ORDERING = "token_ordering"


@dataclass(frozen=True, slots=True)
class Drafter:
    """How a drafter reads a larger model."""

    hidden_size: int  # of the larger model
    clusters: Experts | None = None  # of the output matrix; None: it is read as a whole
    narrow_layers: int = 1  # layers of the larger model's cache of each size of heads: the drafter reads the last ones
    wide_layers: int = 1


def is_drafter(folder: Path) -> bool:
    """Return whether a checkpoint or model folder is a drafter's."""
    file = folder / "config.json"
    if not file.is_file():
        return False
    raw = read_json_object(file)
    return raw.get("model_type") in (GEMMA4, GEMMA4_UNIFIED) or is_eagle(raw)
