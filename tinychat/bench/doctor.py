"""An examination of this machine and of a model: sizes, memory, and what is wrong."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from tinychat.bench.instruction_words import words_for
from tinychat.errors import TinychatError
from tinychat.machine import available_cores, available_memory_bytes, memory_bytes, processor_name
from tinychat.models.architectures import read_config
from tinychat.models.config import ModelConfig
from tinychat.models.embedder import Embedder, read_embedder
from tinychat.models.layout import Quantization, looked_up_bytes, tensor_specs
from tinychat.models.ranker import read_ranker
from tinychat.models.score_head import read_head
from tinychat.store.estimates import PROGRAM_BYTES
from tinychat.store.local import code_lines, list_models, quality_lines, store_folder
from tinychat.store.names import ModelReference
from tinychat.user_folders import cache_folder

if TYPE_CHECKING:
    from tinychat.tools.formats.of_template import TaughtFormat

# What the chat templates are shown with.
_TURNS = (
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": "?"},
)
_LONGEST_TEMPLATE = 400


@dataclass
class Findings:
    """Lines to show, each with its name, and problems, in one line each."""

    lines: list[tuple[str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def add(self, name: str, value: str) -> None:
        """Note a line."""
        self.lines.append((name, value))

    def check(self, part: Callable[[], object]) -> None:
        """Run a part, and note its failure as a problem."""
        try:
            part()
        except TinychatError as error:
            self.problems.append(str(error))
        except OSError as error:
            self.problems.append(f"{error.filename or 'a file'}: {error.strerror or error}")


def examine_machine(findings: Findings) -> None:
    """Note processor, memory, versions, kernel cache and store."""
    from tinychat import processor
    from tinychat.kernels import setup

    names = ("tinychat", "numba", "llvmlite", "numpy")
    findings.add("versions", ", ".join([f"Python {platform.python_version()}", *(f"{n} {version(n)}" for n in names)]))
    findings.add("processor", f"{processor_name()}, {available_cores()} of {os.cpu_count()} cores to use")
    available = setup.host_instruction_sets()
    findings.add("instruction set", f"{setup.INSTRUCTION_SET} (there is: {', '.join(available)})")
    for line in words_for(setup.INSTRUCTION_SET, processor.architecture(), processor.features()):
        findings.add("", line)
    if setup.AMX not in available and processor.features() >= setup.AMX_FEATURES:
        findings.add("", f"not {setup.AMX}: {setup.why_no_amx()}")
    total, free = memory_bytes(), available_memory_bytes()
    findings.add("memory", f"{_size(total)}, {_size(free)} available")
    # Numba reads the folder from here; the package's import has put it there.
    findings.check(lambda: _examine_cache(findings, os.environ["NUMBA_CACHE_DIR"]))
    findings.check(lambda: _examine_store(findings))


def examine_model(
    findings: Findings, reference: ModelReference, context: int | None = None, kv: str | None = None
) -> None:
    """Note sizes and memory of a model, and its problems; the context and type of cache are a chat's by default."""
    findings.add("model", f"{reference.source} ({reference.kind})")
    if reference.kind == "repository":
        findings.add("state", f"not downloaded yet: tinychat pull {reference.source}")
    elif reference.kind == "checkpoint":
        findings.add("state", "not converted yet; the first use does")
        findings.check(lambda: _examine_checkpoint(findings, Path(reference.source), context, kv))
    else:
        findings.check(lambda: _examine_folder(findings, reference.path, context, kv))


def _examine_cache(findings: Findings, chosen: str) -> None:
    if not chosen:
        findings.add("kernel cache", "none: no folder can be written, so every start compiles")
        return
    folder, root = Path(chosen), Path(os.path.realpath(cache_folder(os.environ)))
    compiled = [*folder.rglob("*.nbc"), *folder.rglob("*.code")] if folder.is_dir() else []
    state = f"{len(compiled)} compiled functions" if compiled else "empty: the first start compiles"
    findings.add("kernel cache", f"{folder} ({state})")
    if root not in folder.parents:
        findings.add("", f"{root} is not used: it cannot be trusted or written, or NUMBA_CACHE_DIR says otherwise")
    elder = [other for other in root.glob("kernels-*") if other != folder]
    if elder:
        findings.add(
            "", f"{len(elder)} folders of earlier versions there may be deleted, {_size(_folder_bytes(elder))}"
        )


def _examine_store(findings: Findings) -> None:
    models = list_models()
    size = sum(model.bytes for model in models)
    findings.add("store", f"{store_folder()} ({len(models)} model{'s' * (len(models) != 1)}, {_size(size)})")


def _examine_checkpoint(findings: Findings, source: Path, context: int | None, kv: str | None) -> None:
    from tinychat.checkpoint.checkpoint import open_checkpoint
    from tinychat.checkpoint.folder import folder_of
    from tinychat.conversion.convert import check_tensors
    from tinychat.conversion.pipeline import default_recipe, quantization_of

    with folder_of(source) as folder:
        checkpoint = open_checkpoint(folder)
        check_tensors(checkpoint)
        findings.check(lambda: _examine_text(findings, folder))
        _add_sizes(findings, checkpoint.config, quantization_of(folder, default_recipe(folder)), context, kv)


def _examine_folder(findings: Findings, folder: Path, context: int | None, kv: str | None) -> None:
    from tinychat.models.folder import open_model_folder

    opened = open_model_folder(folder)
    for i, line in enumerate(code_lines(folder)):
        findings.add("" if i else "codes", line)
    for i, line in enumerate(quality_lines(folder)):
        findings.add("" if i else "quality", line)
    findings.check(lambda: _examine_text(findings, folder))
    if (ranker := read_ranker(folder)) is not None:
        findings.check(lambda: read_head(folder, ranker, opened.config.hidden_size))
    _add_sizes(findings, opened.config, opened.quantization, context, kv)


def _examine_text(findings: Findings, folder: Path) -> None:
    from tinychat.text.guard import unguard
    from tinychat.text.hard_texts import HARD_TEXTS, changed_texts
    from tinychat.text.loading import load_tokenizer
    from tinychat.text.pairs import PairWriter
    from tinychat.text.stop import stop_sources
    from tinychat.text.template import load_template, plain_template
    from tinychat.tools.formats.of_template import taught_format

    config = read_config(folder / "config.json")
    if config.larger_size is not None:
        findings.add("drafts", f"for a model with hidden_size {config.larger_size}")
        return
    tokenizer = load_tokenizer(folder)
    if not config.writes:
        findings.add("vocabulary", f"{tokenizer.vocab_size} tokens")
        if (ranker := read_ranker(folder)) is not None:
            template = None if ranker.reads_pairs else load_template(folder, tokenizer)
            PairWriter(tokenizer, template, folder.name).pairs("query", ["document"], None)
            how = "its tokenizer joins" if ranker.reads_pairs else "its chat template writes"
            findings.add("ranking", f"{how} query and document; pooling {ranker.pooling}")
            return
        embedder = read_embedder(folder) or Embedder()
        size = embedder.dense[-1].rows if embedder.dense else config.vector_size
        findings.add("embeddings", f"{size} numbers; pooling {embedder.pooling}; {_names(embedder.prompts)}")
        return
    template = load_template(folder, tokenizer)
    origin = "none: a plain one is used" if template.is_fallback else "its own"
    findings.add("vocabulary", f"{tokenizer.vocab_size} tokens; chat template: {origin}")
    changed = changed_texts(tokenizer)
    count = f"{len(HARD_TEXTS) - len(changed)} of {len(HARD_TEXTS)}"
    findings.add("round trip", f"{count} hard texts are the same once encoded and decoded")
    for text, back in changed:
        findings.add("", f"{_quoted(text)} becomes {_quoted(back)}")
    stops = stop_sources(folder, tokenizer, template).items()
    ids = [f"{number} {_quoted(tokenizer.piece(number))} ({', '.join(sources)})" for number, sources in sorted(stops)]
    findings.add("stop tokens", "; ".join(ids) or "none: a reply ends at its limit")
    for name, each in (("template", template), ("plain one", plain_template(tokenizer))):
        findings.add(name, _quoted(unguard(each.render(_TURNS)), _LONGEST_TEMPLATE))
    findings.add("tools", _described(taught_format(template)))


def _names(prompts: Iterable[str]) -> str:
    named = ", ".join(prompts)
    return f"prompts {named}" if named else "no prompts"


def _described(taught: TaughtFormat) -> str:
    """Return how a model is told of tools, and in which form it calls them."""
    form = f"calls begin with {taught.form.opening} ({taught.form.name})"
    if taught.variable is None:
        return f"the template knows none: a system prompt tells of them; {form}"
    return f"the template tells of them; {form}" + ("" if taught.writes_calls else ", which it leaves in the text")


def _quoted(text: str, limit: int = 80) -> str:
    """Return a text in quotes and in one line, with its middle left out where it is long."""
    text = repr(text)
    return text if len(text) <= limit else f"{text[: limit // 2]} ... {text[-limit // 2 :]}"


def _add_sizes(
    findings: Findings, config: ModelConfig, quantization: Quantization, asked: int | None, kv: str | None
) -> None:
    from tinychat.engine.blocks import sequence_bytes
    from tinychat.engine.context import DEFAULT_CONTEXT, beyond_training, check_context
    from tinychat.engine.loading import default_kv

    if asked is not None:
        check_context(asked)
    context = asked or min(config.max_position_embeddings, DEFAULT_CONTEXT)
    kv = kv or default_kv(config, quantization)
    specs = tensor_specs(config, quantization)
    weights = sum(spec.bytes for spec in specs.values())
    cache = sequence_bytes(config, kv, context)
    needed = weights - looked_up_bytes(specs) + cache + PROGRAM_BYTES
    findings.add("architecture", f"{config.architecture}, {config.num_hidden_layers} layers of {config.hidden_size}")
    stored_as = "the checkpoint's own codes" if quantization.passthrough else quantization.dtype
    findings.add("weights", f"{_size(weights)} in {stored_as}")
    usual = "" if asked else " unless --context says otherwise"
    trained = config.trained_length
    findings.add("context", f"{context} tokens{usual}; trained {trained}")
    if context > trained:
        findings.problems.append(f"{beyond_training(context, trained)}: give --context {trained} or less")
    findings.add("memory needed", f"up to {_size(needed)}, of which {_size(cache)} for a full context in {kv}")
    free = available_memory_bytes()
    if free is not None and needed > free:
        findings.problems.append(
            f"the model needs up to {_size(needed)} and {_size(free)} are available: "
            "close other programs, or chat with a smaller --context or with --kv int8"
        )


def _folder_bytes(folders: list[Path]) -> int:
    """Return the size of all files in some folders; other processes may remove some meanwhile."""
    size = 0
    for root, _, names in (part for folder in folders for part in os.walk(folder)):
        for name in names:
            with suppress(OSError):
                size += os.stat(os.path.join(root, name)).st_size
    return size


def _size(count: int | None) -> str:
    if count is None:
        return "unknown"
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
