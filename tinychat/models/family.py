"""The description of an architecture: how its `config.json` is read, and the names of its tensors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import TensorNames, decoder_linears, decoder_norms
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
    tensors : TensorNames
        Names of the tensors in the checkpoint, where they differ from Llama's.
    linears, norms : callable
        Take a configuration and these names and list the tensors, where they are more than names.
    tables : callable
        Takes a configuration and lists its tables.
    partial_rotary : bool
        Whether ``partial_rotary_factor`` may say that only the first channels of each head are rotated.
    names : Mapping
        Keys of its `config.json` by Llama's, which `read_common` reads, where they differ.
    prepared : callable or None
        Takes a file's values and returns them in the form that is read, where there are several.
    """

    architecture: str
    model_type: str
    models: str
    covered: str
    defaults: Mapping[str, object]
    read: Callable[[ConfigValues, ModelConfig], ModelConfig]
    tensors: TensorNames = field(default_factory=TensorNames)
    linears: Callable[[ModelConfig, TensorNames], list[Linear]] = decoder_linears
    norms: Callable[[ModelConfig, TensorNames], list[Norm]] = decoder_norms
    tables: Callable[[ModelConfig], list[Table]] = lambda config: []
    partial_rotary: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    prepared: Callable[[Mapping[str, object]], Mapping[str, object]] | None = None
