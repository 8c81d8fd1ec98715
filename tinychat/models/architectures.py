"""Finds the supported architectures in `tinychat.models.families`; reads a `config.json` as its architecture does."""

import importlib
import pkgutil
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path

from tinychat.errors import UnsupportedModelError
from tinychat.json_file import one_line, path_end, read_json_object
from tinychat.models import families
from tinychat.models.config import ModelConfig, read_common
from tinychat.models.config_values import ConfigValues
from tinychat.models.family import Family
from tinychat.models.multimodal import text_part
from tinychat.models.tensors import Linear, Norm, Table


class _Families(MutableMapping[str, Family]):
    """Families by architecture, each file imported when one of it is asked for; a list of all imports all."""

    def __init__(self, files: Iterable[str]) -> None:
        self._files = [*files]
        self._unread, self._found = [*self._files], dict[str, Family]()

    def __getitem__(self, name: str) -> Family:
        if name not in self._found:
            # Most have the name of their file; of the others, nobody knows where they are.
            self._read([file for file in self._unread if name.lower().startswith(file.replace("_", ""))])
        if name not in self._found:
            self._read([*self._unread])
        return self._found[name]

    def __setitem__(self, name: str, family: Family) -> None:
        self._found[name] = family

    def __delitem__(self, name: str) -> None:
        del self._found[name]

    def __iter__(self) -> Iterator[str]:
        return (family.architecture for file in self._files for family in _families_of(file))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _read(self, files: list[str]) -> None:
        for file in files:
            self._found.update({family.architecture: family for family in _families_of(file)})
        # Replaced as a whole: another thread may read meanwhile.
        self._unread = [file for file in self._unread if file not in files]


def _families_of(file: str) -> Sequence[Family]:
    found: Sequence[Family] = importlib.import_module(f"{families.__name__}.{file}").FAMILIES
    return found


FAMILIES = _Families(file.name for file in pkgutil.iter_modules(families.__path__))


def unsupported(source: str, what: str) -> UnsupportedModelError:
    """Return the error about a model that is not implemented, which leads to the list of those that are."""
    where = "see 'Supported families' in docs/, or `tinychat models --available`"
    return UnsupportedModelError(f"{path_end(source)}: {what} is not supported; {where}")


def read_config(path: Path) -> ModelConfig:
    """Read a `config.json`; raises as `parse_config` does, and CheckpointError for an unreadable file."""
    return parse_config(read_json_object(path), str(path))


def parse_config(raw: Mapping[str, object], source: str) -> ModelConfig:
    """Validate a parsed `config.json` of transformers 4 or 5; of a multimodal model, its text model's part.

    Parameters
    ----------
    raw : Mapping
        The JSON object; keys that are not needed are ignored.
    source : str
        The file's name, for errors.

    Raises
    ------
    UnsupportedModelError
        If architecture, activation, rotary embedding, layer types or a quantization are not implemented.
    CheckpointError
        If a value is missing, of the wrong type, out of range or contradicts another.
    """
    raw = text_part(raw)
    family = FAMILIES[_read_architecture(ConfigValues(raw, source))]
    prepared = raw if family.prepared is None else family.prepared(raw)
    values = ConfigValues({**family.defaults, **prepared}, source, family.names)
    return family.read(values, read_common(values, family.architecture, family.partial_rotary))


def linears(config: ModelConfig) -> list[Linear]:
    """List a model's linear layers: the embedding first, which counts as one; tied models have no ``lm_head``."""
    return FAMILIES[config.architecture].linears(config)


def weight_count(config: ModelConfig) -> int:
    """Return how many weights a model's linear layers have."""
    return sum(linear.weights for linear in linears(config))


def norms(config: ModelConfig) -> list[Norm]:
    """List a model's norms."""
    return FAMILIES[config.architecture].norms(config)


def tables(config: ModelConfig) -> list[Table]:
    """List a model's tables of vectors that stay float32."""
    return FAMILIES[config.architecture].tables(config)


def _read_architecture(values: ConfigValues) -> str:
    names = values.get("architectures")
    model_type = values.optional_text("model_type")
    if names is None and model_type is not None:
        names = [name for name, family in FAMILIES.items() if family.model_type == model_type] or [model_type]
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise values.error("architectures", 'a list such as ["LlamaForCausalLM"]')
    name = names[0]
    if name not in FAMILIES:
        raise unsupported(values.source, f"architecture {one_line(name, 40)!r}")
    if model_type not in (None, FAMILIES[name].model_type):
        raise UnsupportedModelError(
            f"{values.source}: model_type {one_line(str(model_type))!r} with architecture {name!r} is not"
            f" supported; expected {FAMILIES[name].model_type!r}"
        )
    return name
