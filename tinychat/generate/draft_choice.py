"""Who writes a model's drafts: itself, a smaller model, a drafter, or nobody."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tinychat.generate.draft_model import ModelDrafts
from tinychat.generate.drafter_drafts import DrafterDrafts
from tinychat.generate.eagle_drafts import EagleDrafts
from tinychat.generate.head_drafts import own_drafts
from tinychat.models.drafter_folder import open_drafter

if TYPE_CHECKING:
    from tinychat.engine.sequence import Sequence
    from tinychat.generate.drafts import Drafts


def drafts_of(
    sequence: Sequence, name: str, draft: bool | Sequence | Path, progress: Callable[[int, int], None] | None = None
) -> Drafts | None:
    """Return the drafts of a model, called `name`; progress : of compilation.

    They are by itself, by a smaller model, of which `draft` is a sequence, or by the drafter in a folder (`FieldError`
    if that is for another model); None for False.
    """
    if isinstance(draft, Path):
        drafter = open_drafter(draft, sequence.engine.config, name)
        kind = EagleDrafts if drafter.config.eagle else DrafterDrafts
        return kind(sequence, drafter, progress)
    if not isinstance(draft, bool):
        return ModelDrafts(draft, sequence.vocab_size)
    return own_drafts(sequence, progress) if draft else None
