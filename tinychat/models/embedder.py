"""How an embedding model pools its hidden states: the files of sentence-transformers beside its weights.

``modules.json`` lists the steps from texts to vectors, ``1_Pooling/config.json`` says which hidden states count,
``2_Dense`` and ``3_Dense`` hold linear layers of what is pooled, and ``config_sentence_transformers.json`` names the
prompts that stand before texts (www.sbert.net). Other files change nothing here: vectors are always brought to length
1, and a text that is too long is refused, not cut.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tinychat.errors import CheckpointError, FieldError, UnsupportedModelError
from tinychat.json_file import one_line, read_json, read_json_object
from tinychat.models.config_values import ConfigValues

MODULES, POOLING, PROMPTS = "modules.json", "1_Pooling/config.json", "config_sentence_transformers.json"
DENSE = ("2_Dense", "3_Dense")
DENSE_CONFIG, DENSE_WEIGHTS = "config.json", "model.safetensors"
EMBEDDER_FILES = (
    MODULES,
    POOLING,
    PROMPTS,
    *(f"{folder}/{name}" for folder in DENSE for name in (DENSE_CONFIG, DENSE_WEIGHTS)),
)
POOLINGS = ("mean", "last", "cls")
# Those of files by their names there; all the others are not supported.
_NAMES = {"mean_tokens": "mean", "mean": "mean", "lasttoken": "last", "cls_token": "cls", "cls": "cls"}
_STEPS = ("Transformer", "Pooling", "Dense", "Normalize")
_OF_RANKERS = (["Transformer"], ["Transformer", "LogitScore"])
# Activations of linear layers by their classes in torch.
_ACTIVATIONS = {"torch.nn.modules.linear.Identity": "", "torch.nn.modules.activation.Tanh": "tanh"}
_MOST_PROMPTS, _LONGEST_PROMPT = 256, 1 << 16


@dataclass(frozen=True)
class DenseStep:
    """A linear layer of pooled vectors, in a folder of the model's: from `columns` numbers to `rows`.

    `activation` is "tanh", or "" for none.
    """

    folder: str
    rows: int
    columns: int
    bias: bool = False
    activation: str = ""


@dataclass(frozen=True)
class Embedder:
    """The recipe of an embedding model: how a text becomes a vector.

    `pooling` is one of `POOLINGS`, `dense` are linear layers of what is pooled. `prompts` are put before texts by name;
    `default_prompt` is the name of the one that texts get where nobody names one.
    """

    pooling: str = POOLINGS[0]
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    dense: tuple[DenseStep, ...] = ()

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
    dense = _read_steps(folder / MODULES)
    if dense is None:
        return None
    pooling = _read_pooling(folder / POOLING)
    steps = _read_dense([folder / name for name in DENSE[:dense]])
    return Embedder(pooling, *_read_prompts(folder / PROMPTS), dense=steps)


def check_embedder(embedder: Embedder, vector_size: int, folder: Path) -> None:
    """Raise CheckpointError unless the linear layers behind the pooling fit the model, which gives so many numbers."""
    if embedder.dense and embedder.dense[0].columns != vector_size:
        path, columns = folder / embedder.dense[0].folder / DENSE_CONFIG, embedder.dense[0].columns
        raise CheckpointError(f"{path}: in_features is {columns}; the model gives {vector_size} numbers")


def embedder_files(pooling: str, dense: Sequence[DenseStep] = ()) -> dict[str, str]:
    """Return the text files of an embedding model without prompts, by their names: see `read_embedder`."""
    (theirs,) = (name for name, ours in _NAMES.items() if ours == pooling and name != pooling)
    kinds = [*_STEPS[:2], *(_STEPS[2] for _ in dense), _STEPS[3]]
    steps = [{"idx": i, "path": f"{i}_{kind}" if i else "", "type": kind} for i, kind in enumerate(kinds)]
    files = {MODULES: json.dumps(steps), POOLING: json.dumps({f"pooling_mode_{theirs}": True})}
    for step in dense:
        (activation,) = (theirs for theirs, ours in _ACTIVATIONS.items() if ours == step.activation)
        config = {"in_features": step.columns, "out_features": step.rows, "bias": step.bias}
        files[f"{step.folder}/{DENSE_CONFIG}"] = json.dumps(config | {"activation_function": activation})
    return files


def read_modules(path: Path) -> list[tuple[str, object]]:
    """Return the steps that ``modules.json`` lists: the type of each, without its package, and its folder."""
    modules = read_json(path)
    if not isinstance(modules, list) or not all(isinstance(one, dict) for one in modules):
        raise CheckpointError(f"{path}: expected a list of objects; download it again")
    return [(str(one.get("type")).rpartition(".")[2], one.get("path")) for one in modules]


def _read_steps(path: Path) -> int | None:
    """Refuse steps that are not a transformer, pooling, linear layers and norming; return how many layers there are.

    None for the steps of a model that ranks: see `models.ranker`.
    """
    modules = read_modules(path)
    steps = [step for step, _ in modules]
    if steps in _OF_RANKERS:
        return None
    for step in steps:
        if step not in _STEPS:
            raise UnsupportedModelError(f"{path}: a module of type {one_line(step, 40)!r} is not supported")
    dense = steps.count("Dense")
    expected = [*_STEPS[:2], *("Dense" for _ in DENSE[:dense]), "Normalize"]
    folders = [folder for step, folder in modules if step in ("Pooling", "Dense")]
    if steps not in (expected, expected[:-1]) or folders != [POOLING.partition("/")[0], *DENSE[:dense]]:
        raise UnsupportedModelError(f"{path}: modules {one_line(', '.join(steps), 60)} in this order are not supported")
    return dense


def _read_dense(folders: Sequence[Path]) -> tuple[DenseStep, ...]:
    """Return the linear layers of pooled vectors; each reads as many numbers as the one before gives."""
    steps: list[DenseStep] = []
    for folder in folders:
        path = folder / DENSE_CONFIG
        values = ConfigValues(read_json_object(path), str(path))
        theirs = values.optional_text("activation_function") or ""
        known = {name.rpartition(".")[2]: ours for name, ours in _ACTIVATIONS.items()}
        if (activation := known.get(theirs.rpartition(".")[2])) is None:
            raise UnsupportedModelError(f"{path}: activation_function {one_line(theirs, 60)!r} is not supported")
        rows, columns = (values.integer(name, 2, 1 << 16) for name in ("out_features", "in_features"))
        if steps and columns != steps[-1].rows:
            raise values.error("in_features", f"{steps[-1].rows}, as many as the layer before gives")
        steps.append(DenseStep(folder.name, rows, columns, values.flag("bias", True), activation))
    return tuple(steps)


def _read_pooling(path: Path) -> str:
    """Return which hidden states count."""
    values = ConfigValues(read_json_object(path), str(path))
    keys = [key for key in sorted(values.keys()) if key.startswith("pooling_mode_") and values.flag(key, False)]
    named = values.optional_text("pooling_mode")
    modes = [named] if named is not None else [key.removeprefix("pooling_mode_") for key in keys]
    if len(modes) != 1 or modes[0] not in _NAMES:
        found = one_line(" and ".join(modes) or "none", 60)
        raise UnsupportedModelError(
            f"{path}: pooling {found} is not supported; supported are mean_tokens, lasttoken, cls_token"
        )
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
