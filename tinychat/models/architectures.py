"""Finds the supported architectures in `tinychat.models.families`; reads a `config.json` as its architecture does."""

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from tinychat.errors import UnsupportedModelError
from tinychat.json_file import one_line, path_end, read_json_object
from tinychat.models import families
from tinychat.models.config import ModelConfig, read_common
from tinychat.models.config_values import ConfigValues
from tinychat.models.deepstack import read_deepstack_layers
from tinychat.models.eagle import one_form
from tinychat.models.embedder import is_embedder
from tinychat.models.family import CLASSIFIER, DraftHead, Family
from tinychat.models.multimodal import MOST_JOINT_TOKENS, image_token_of, joint_tokens_of, text_part, wrapper_of
from tinychat.models.rotary_axes import read_rotary_axes
from tinychat.models.tensors import Linear, Norm, Table

# Of architectures with an output matrix.
_ENDINGS = ("ForCausalLM", "LMHeadModel")


@cache
def supported_families() -> dict[str, Family]:
    """Return all families of models by architecture: vision towers are parts of these."""
    names = [file.name for file in pkgutil.iter_modules(families.__path__)]
    found = (family for name in names for family in _families_in(name))
    return {family.architecture: family for family in found if not family.is_tower}


@cache
def find_family(architecture: str) -> Family | None:
    """Return the family of an architecture, None for an unknown one.

    Most have the name of their file: to import all files would take some 20 milliseconds of every start.
    """
    for file in pkgutil.iter_modules(families.__path__):
        if architecture.lower().replace("_", "").startswith(file.name.replace("_", "")):
            for family in _families_in(file.name):
                if family.architecture == architecture:
                    return family
    return supported_families().get(architecture)


def _families_in(name: str) -> list[Family]:
    module = importlib.import_module(f"{families.__name__}.{name}")
    return [each for each in vars(module).values() if isinstance(each, Family)]


def family_of(architecture: str) -> Family:
    """Return the family of a supported architecture."""
    family = find_family(architecture)
    assert family is not None, architecture
    return family


def unsupported(source: str, what: str) -> UnsupportedModelError:
    """Return the error about a model that is not implemented, with a link to the list of those that are."""
    where = "see 'Supported families' in docs/, or `tinychat models --available`"
    return UnsupportedModelError(f"{path_end(source)}: {what} is not supported; {where}")


def read_config(path: Path) -> ModelConfig:
    """Read a `config.json`; raises as `parse_config` does, and CheckpointError for an unreadable file.

    The output matrix of an embedding model, as the files beside this one show it, is left out.
    """
    config = parse_config(read_json_object(path), str(path))
    return _without_output(config) if is_embedder(path.parent) else config


def parse_config(raw: Mapping[str, object], source: str) -> ModelConfig:
    """Validate a parsed `config.json` of transformers 4 or 5, or its text model's part; errors name it `source`.

    `UnsupportedModelError` if architecture, activation, rotary embedding, layer types or a quantization are not
    implemented; `CheckpointError` if a value is missing, of the wrong type, out of range or contradicts another.
    """
    family, values, writes = read_values(raw, source)
    config = family.read(values, read_common(values, family.architecture, family.partial_rotary))
    if config.bidirectional:
        _check_bidirectional(values, config)
    if (image_token := image_token_of(raw)) is not None:
        given = {"image_token_id": image_token, "tokens of an image": joint_tokens_of(raw)}
        wrapper, seen = wrapper_of(raw), ConfigValues(given, source)
        config = replace(
            config,
            image_token_id=seen.integer("image_token_id", 0, config.vocab_size - 1),
            image_input_id=_image_input_id(values, config),
            joint_tokens=seen.integer("tokens of an image", 0, MOST_JOINT_TOKENS),
            deepstack_layers=read_deepstack_layers(raw, source, wrapper, config.num_hidden_layers),
            rotary_axes=read_rotary_axes(values, wrapper, config.rotary_dim // 2),
        )
    return _without_output(config) if config.bidirectional or not writes else config


def read_values(raw: Mapping[str, object], source: str) -> tuple[Family, ConfigValues, bool]:
    """Return the family of a `config.json`, or of its text model, the values, and whether it has an output matrix.

    The family's defaults are among them. Errors are those of `parse_config` about the architecture.
    """
    raw = one_form(text_part(raw))
    architecture, writes = _read_architecture(ConfigValues(raw, source))
    family = family_of(architecture)
    prepared = raw if family.prepared is None else family.prepared(raw)
    return family, ConfigValues({**family.defaults, **prepared}, source, family.names), writes


def _image_input_id(values: ConfigValues, config: ModelConfig) -> int:
    """Return the token whose embeddings for layers parts of an image have: that of padding, where there are any."""
    has_inputs = config.varied is not None and config.varied.input_size > 0
    return values.optional_integer("pad_token_id", 0, config.vocab_size - 1) or 0 if has_inputs else 0


def _check_bidirectional(values: ConfigValues, config: ModelConfig) -> None:
    """Refuse layers that cannot attend to later tokens, and windows and slopes that transformers counts otherwise."""
    past = config.state_layers or config.conv_layers
    # Without the query's own position; slopes of keys' positions, not of distances.
    others = (any(config.sliding_windows) or config.alibi_slopes) and not values.flag("is_causal", True)
    if past or others:
        raise UnsupportedModelError(f"{values.source}: attention to later tokens is not supported for such layers")


def _without_output(config: ModelConfig) -> ModelConfig:
    """Return the configuration of the same model without an output matrix: the embedding stands in for it."""
    return replace(config, tie_word_embeddings=True, writes=False)


def linears(config: ModelConfig) -> list[Linear]:
    """List a model's linear layers: the embedding first, which counts as one; tied models have no ``lm_head``."""
    return _tensors_of(config).linears(config, family_of(config.architecture).tensors)


def weight_count(config: ModelConfig) -> int:
    """Return the number of weights of a model's linear layers."""
    return sum(linear.weights for linear in linears(config))


def norms(config: ModelConfig) -> list[Norm]:
    """List a model's norms."""
    return _tensors_of(config).norms(config, family_of(config.architecture).tensors)


def tables(config: ModelConfig) -> list[Table]:
    """List a model's tables of vectors that stay float32."""
    return family_of(config.architecture).tables(config)


def expected_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape of each tensor that a checkpoint of this configuration has."""
    for linear in linears(config):
        for shard in range(linear.shards):
            for part, rows in zip(linear.names(shard), linear.rows):
                yield f"{part}.weight", (rows, linear.columns)
                if linear.bias:
                    yield f"{part}.bias", (rows,)
    for norm in norms(config):
        for source in norm.sources:
            yield f"{source}.weight", (norm.size,)
            if norm.bias:
                yield f"{source}.bias", (norm.size,)
    for table in tables(config):
        yield f"{table.source}.weight", (table.first + table.rows, table.columns)


def _tensors_of(config: ModelConfig) -> Family | DraftHead:
    family = family_of(config.architecture)
    return family.draft_head if config.is_draft_head and family.draft_head else family


def _read_architecture(values: ConfigValues) -> tuple[str, bool]:
    """Return the supported architecture, and whether the checkpoint has an output matrix: see `_whole_model`."""
    names = values.get("architectures")
    model_type = values.optional_text("model_type")
    if names is None and model_type is not None:
        names = [name for name, family in supported_families().items() if family.model_type == model_type] or [
            model_type
        ]
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise values.error("architectures", 'a list such as ["LlamaForCausalLM"]')
    whole = _whole_model(names[0])
    name = whole or names[0]
    if find_family(name) is None and model_type is not None:
        name = _named_by_type(name, model_type) or name
    if find_family(name) is None:
        raise unsupported(values.source, f"architecture {one_line(name, 40)!r}")
    family = family_of(name)
    if model_type in (None, family.model_type, *family.other_types):
        return name, whole is None
    if (meant := _named_by_type(name, model_type)) is None:
        raise UnsupportedModelError(
            f"{values.source}: model_type {one_line(str(model_type))!r} with architecture {names[0]!r} is not"
            f" supported; expected {family.model_type!r}"
        )
    return meant, whole is None


def _named_by_type(name: str, model_type: str | None) -> str | None:
    """Return the architecture of a model type that transformers runs with another one's class, `name`."""
    of_type = (family for family in supported_families().values() if family.model_type == model_type)
    return next((family.architecture for family in of_type if name in family.also_written), None)


def _whole_model(name: str) -> str | None:
    """Return the architecture with an output matrix for one without: "Qwen3ForCausalLM" for "Qwen3Model".

    Of an encoder that sorts or ranks texts, "BertForSequenceClassification", it is "BertModel".
    """
    if not name.endswith(("Model", CLASSIFIER)) or find_family(name) is not None:
        return None
    stem = name.removesuffix("Model").removesuffix(CLASSIFIER).removesuffix("Text")
    return next((whole for ending in (*_ENDINGS, "Model") if find_family(whole := f"{stem}{ending}")), None)
