"""The description of an architecture: how its `config.json` is read, and the names of its tensors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import TensorNames, decoder_linears, decoder_norms
from tinychat.models.tensors import Linear, Norm, Table


@dataclass(frozen=True)
class DraftHead:
    """The tensors of a layer that some checkpoints have for drafts: see `models.draft_head`.

    `prefix` of their names stands where the model has ``model.``; the functions list them by the model's names.
    """

    prefix: str
    linears: Callable[[ModelConfig, TensorNames], list[Linear]]
    norms: Callable[[ModelConfig, TensorNames], list[Norm]]


CLASSIFIER = "ForSequenceClassification"
"""Ends the names of architectures of models that rank, or sort texts."""


def classifier_stem(values: ConfigValues) -> str | None:
    """Return the name of a model for sequence classification, "Bert" of "BertForSequenceClassification"; else None."""
    names = values.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    return name.removesuffix(CLASSIFIER) if name.endswith(CLASSIFIER) else None


def with_names(names: Mapping[str, str]) -> Callable[[Mapping[str, object]], Mapping[str, object]]:
    """Return a `Family.prepared` for files that have keys by `Family.names`, or by those that transformers writes."""

    def prepared(raw: Mapping[str, object]) -> Mapping[str, object]:
        others = {name: raw[key] for key, name in names.items() if raw.get(name) is None and key in raw}
        return {**raw, **others}

    return prepared


@dataclass(frozen=True)
class Family:
    """One architecture; each file of `tinychat.models.families` has one or a few."""

    architecture: str  # as `config.json` names it: "LlamaForCausalLM"
    model_type: str
    models: str  # the models of the family, for the table in docs/models-and-conversion.md
    covered: str  # the parts of them that are covered, for the same table
    defaults: Mapping[str, object]  # transformers' values for keys that a file lacks; a null stays null
    # Takes the file's values and the configuration as far as all families have it: no biases, no norms of queries and
    # keys, no windows, every layer rotated. Returns the configuration of this family.
    read: Callable[[ConfigValues, ModelConfig], ModelConfig]
    tensors: TensorNames = field(default_factory=TensorNames)  # names in the checkpoint, Llama's by default
    # List the tensors of these names, where they are more than names; `tables` those that are no linears and norms.
    linears: Callable[[ModelConfig, TensorNames], list[Linear]] = decoder_linears
    norms: Callable[[ModelConfig, TensorNames], list[Norm]] = decoder_norms
    tables: Callable[[ModelConfig], list[Table]] = lambda config: []
    partial_rotary: bool = False  # `partial_rotary_factor` may leave the last channels of each head as they are
    also_written: tuple[str, ...] = ()  # architectures that transformers writes for this `model_type`, too
    other_types: tuple[str, ...] = ()  # model types that published files have, too
    names: Mapping[str, str] = field(default_factory=dict)  # keys of its `config.json` by Llama's, where they differ
    # Takes a file's values and returns them in the form that is read, where there are several.
    prepared: Callable[[Mapping[str, object]], Mapping[str, object]] | None = None
    # Takes the name of a tensor in a checkpoint and returns that of `tensors`, where published files have others.
    renamed: Callable[[str], str] | None = None
    draft_head: DraftHead | None = None
    is_tower: bool = False  # a vision tower (`models.vision`), which no checkpoint holds by itself
