"""What sets one architecture apart: how its `config.json` is read, and what its tensors are called."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.tensors import Linear, Norm, Table


@dataclass(frozen=True)
class Family:
    """One architecture; each file of `tinychat.models.families` has one or a few, as ``FAMILIES``.

    Attributes
    ----------
    architecture, model_type : str
        As `config.json` names them: ``"LlamaForCausalLM"``, ``"llama"``.
    models, covered : str
        Models of the family, and the parts of them that are covered, for the table in docs/models-and-conversion.md.
    defaults : Mapping
        transformers' own values for keys that a file lacks; a key that is present and null stays null.
    read : callable
        Takes the file's values and the configuration as far as all families have it: no biases, no norms of queries
        and keys, no windows, every layer rotated. Returns the configuration of this family.
    linears, norms, tables : callable
        Take a configuration and list its tensors.
    partial_rotary : bool
        Whether ``partial_rotary_factor`` may say that only the first channels of each head are rotated.
    names : Mapping
        What its `config.json` calls keys that `read_common` reads, where that differs from Llama's.
    prepared : callable or None
        Takes a file's values and returns them in the form that is read, where there are several.
    """

    architecture: str
    model_type: str
    models: str
    covered: str
    defaults: Mapping[str, object]
    read: Callable[[ConfigValues, ModelConfig], ModelConfig]
    linears: Callable[[ModelConfig], list[Linear]]
    norms: Callable[[ModelConfig], list[Norm]]
    tables: Callable[[ModelConfig], list[Table]] = lambda config: []
    partial_rotary: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    prepared: Callable[[Mapping[str, object]], Mapping[str, object]] | None = None
