"""Loading a model folder: engine, tokenizer, template and the advice of its makers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tinychat.generate.generation_config import own_defaults
from tinychat.generate.head_drafts import own_drafts
from tinychat.generate.model import Model
from tinychat.images.encoder import ImageEncoder
from tinychat.models.embedder import Embedder, check_embedder, read_embedder
from tinychat.models.ranker import check_ranker, read_ranker
from tinychat.models.vision import sees


def load_folder(
    folder: Path,
    *,
    context: int | None = None,
    threads: int | None = None,
    kv: str | None = None,
    cache_memory: int | None = None,
    share: int = 100,
    draft: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Model:
    """Load a model folder, as `tinychat.convert` writes it; parameters are those of `tinychat.load`, checked by it."""
    # Imported here so that light commands do not load Numba and the tokenizers.
    from tinychat.engine.loading import load_engine
    from tinychat.engine.sequence import new_sequence
    from tinychat.text.loading import load_tokenizer
    from tinychat.text.stop import stop_ids
    from tinychat.text.template import load_template, start_renderer

    start_renderer()
    engine = load_engine(folder, threads=threads, kv=kv, cache_memory=cache_memory, share=share, progress=progress)
    tokenizer = load_tokenizer(folder)
    template = load_template(folder, tokenizer)
    ends, advised = stop_ids(folder, tokenizer, template), own_defaults(folder)
    embedder = read_embedder(folder) or (None if engine.config.writes else Embedder())
    if embedder is not None:
        check_embedder(embedder, engine.config.vector_size, folder)
    if (ranker := read_ranker(folder)) is not None:
        check_ranker(ranker, engine.config, folder)
    encoder = ImageEncoder(folder, threads, progress) if sees(folder) and engine.images else None
    sequence = new_sequence(engine, context)
    drafts = own_drafts(sequence, progress) if draft else None
    return Model(sequence, tokenizer, template, ends, folder, drafts, advised, embedder, ranker, encoder)
