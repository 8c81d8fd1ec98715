"""How an embedding model pools its hidden states: the files of sentence-transformers beside its weights.

``modules.json`` lists the steps from texts to vectors, ``1_Pooling/config.json`` says which hidden states count, and
``config_sentence_transformers.json`` names the prompts that stand before texts (www.sbert.net). Other files change
nothing here: vectors are always brought to length 1, and a text that is too long is refused, not cut.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tinychat.errors import CheckpointError, FieldError, UnsupportedModelError
from tinychat.json_file import one_line, read_json, read_json_object
from tinychat.models.config_values import ConfigValues

MODULES, POOLING, PROMPTS = EMBEDDER_FILES = (
    "modules.json",
    "1_Pooling/config.json",
    "config_sentence_transformers.json",
)
POOLINGS = ("mean", "last")
# Those of files by their names there; all the others are not supported.
_NAMES = {"mean_tokens": "mean", "mean": "mean", "lasttoken": "last"}
_STEPS = ("Transformer", "Pooling", "Normalize")
_MOST_PROMPTS, _LONGEST_PROMPT = 256, 1 << 16


@dataclass(frozen=True)
class Embedder:
    """The recipe of an embedding model: how a text becomes a vector.

    `pooling` is one of `POOLINGS`. `prompts` are put before texts by name; `default_prompt` is the name of the one that
    texts get where nobody names one.
    """

    pooling: str = POOLINGS[0]
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None

    def prompted(self, text: str, prompt: str | None = None) -> str:
        """Return a text behind the prompt of this name, else behind the default one; FieldError for another name."""
        name = self.default_prompt if prompt is None else prompt
        if name is None:
            return text
        if name not in self.prompts:
            known = f"must be one of {', '.join(self.prompts)}" if self.prompts else "does nothing: this model has none"
            raise FieldError("prompt", f"{one_line(name, 60)!r} {known}")
        return self.prompts[name] + text


def is_embedder(folder: Path) -> bool:
    """Return whether a checkpoint or model folder holds an embedding model."""
    return (folder / MODULES).is_file()


def read_embedder(folder: Path) -> Embedder | None:
    """Read the files of an embedding model; None where the folder holds no such model.

    `UnsupportedModelError` for a step or a pooling that is not implemented, `CheckpointError` for a damaged file.
    """
    if not is_embedder(folder):
        return None
    _check_steps(folder / MODULES)
    pooling = _read_pooling(folder / POOLING)
    return Embedder(pooling, *_read_prompts(folder / PROMPTS))


def embedder_files(pooling: str) -> dict[str, str]:
    """Return the files of an embedding model without prompts, by their names: see `read_embedder`."""
    (theirs,) = (name for name, ours in _NAMES.items() if ours == pooling and name != pooling)
    steps = [{"idx": i, "path": f"{i}_{kind}" if i else "", "type": kind} for i, kind in enumerate(_STEPS)]
    return {MODULES: json.dumps(steps), POOLING: json.dumps({f"pooling_mode_{theirs}": True})}


def _check_steps(path: Path) -> None:
    """Refuse steps that are not a transformer, its pooling and norming the vectors."""
    modules = read_json(path)
    if not isinstance(modules, list) or not all(isinstance(one, dict) for one in modules):
        raise CheckpointError(f"{path}: expected a list of objects; download it again")
    steps = [str(one.get("type")).rpartition(".")[2] for one in modules]
    for step in steps:
        if step not in _STEPS:
            raise UnsupportedModelError(f"{path}: a module of type {one_line(step, 40)!r} is not supported")
    folders = [one.get("path") for one, step in zip(modules, steps) if step == "Pooling"]
    if steps[:2] != [*_STEPS[:2]] or folders != [POOLING.partition("/")[0]]:
        raise UnsupportedModelError(f"{path}: modules {one_line(', '.join(steps), 60)} in this order are not supported")


def _read_pooling(path: Path) -> str:
    """Return which hidden states count."""
    values = ConfigValues(read_json_object(path), str(path))
    keys = [key for key in sorted(values.keys()) if key.startswith("pooling_mode_") and values.flag(key, False)]
    named = values.optional_text("pooling_mode")
    modes = [named] if named is not None else [key.removeprefix("pooling_mode_") for key in keys]
    if len(modes) != 1 or modes[0] not in _NAMES:
        found = one_line(" and ".join(modes) or "none", 60)
        raise UnsupportedModelError(f"{path}: pooling {found} is not supported; supported are mean_tokens, lasttoken")
    if _NAMES[modes[0]] == "mean":
        # Else the mean is that of the text without its prompt.
        values.require(include_prompt=True)
    return _NAMES[modes[0]]


def _read_prompts(path: Path) -> tuple[dict[str, str], str | None]:
    """Return the prompts by name, and the name of the default one."""
    values = ConfigValues(read_json_object(path) if path.is_file() else {}, str(path))
    found = values.get("prompts") or {}
    if not isinstance(found, dict) or len(found) > _MOST_PROMPTS:
        raise values.error("prompts", f"an object of at most {_MOST_PROMPTS} texts")
    if not all(isinstance(text, str) and len(text) <= _LONGEST_PROMPT for text in found.values()):
        raise values.error("prompts", f"texts of at most {_LONGEST_PROMPT} characters")
    default = values.optional_text("default_prompt_name")
    if default is not None and default not in found:
        raise values.error("default_prompt_name", "the name of a prompt")
    return found, default
