"""Who writes a model's drafts: itself, a smaller model, a drafter, or nobody."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tinychat.errors import FieldError
from tinychat.generate.draft_model import ModelDrafts
from tinychat.generate.drafter_drafts import DrafterDrafts
from tinychat.generate.drafts import Drafts
from tinychat.generate.head_drafts import own_drafts
from tinychat.models.drafter_folder import open_drafter

if TYPE_CHECKING:
    from tinychat.generate.model import Model


def drafts_of(
    model: Model, draft: bool | Model | Path, progress: Callable[[int, int], None] | None = None
) -> Drafts | None:
    """Return the drafts of a model by itself, by a smaller model, or by the drafter in a folder; None for False.

    `SettingError` if the smaller model has another vocabulary, or the drafter is for another model; progress : of
    compilation.
    """
    if isinstance(draft, bool):
        return own_drafts(model.sequence, progress) if draft else None
    if isinstance(draft, Path):
        folder = open_drafter(draft, model.engine.config, model.name)
        return DrafterDrafts(model.sequence, folder, progress)
    draft.check_writes()
    if not model.tokenizer.agrees_with(draft.tokenizer):
        raise FieldError("draft", f"must be a model with the vocabulary of {model.name}, unlike {draft.name}")
    return ModelDrafts(draft.sequence, model.vocab_size)
