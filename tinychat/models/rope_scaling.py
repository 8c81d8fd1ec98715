"""The rotary embedding's settings: how a model stretches positions beyond its training length."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tinychat.errors import UnsupportedModelError
from tinychat.json_file import one_line
from tinychat.models.config_values import ConfigValues

ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
MAX_POSITIONS = 1 << 30
DEFAULT_ROPE_THETA = 10_000.0
SLIDING, FULL = "sliding_attention", "full_attention"  # kinds of layers


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """One of the scalings, with the key names of checkpoints; defaults where the type has no such key."""

    rope_type: str  # of `ROPE_TYPES`; "doubling", which no file names: Qwen 1's; or "proportional"
    factor: float  # longest sequence over the training length
    original_max_position_embeddings: int = 0  # training length in positions (all types but linear and dynamic)
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    attention_factor: float | None = None  # of cosines and sines (yarn, longrope); None: computed from the others
    truncate: bool = True  # yarn rounds its correction range outwards to whole dimensions
    short_factor: tuple[float, ...] = ()  # divisors of each pair's frequency up to the training length (longrope)
    long_factor: tuple[float, ...] = ()  # the same beyond it
    rotated: float = 1.0  # share of the pairs, the fastest ones, that turn (proportional)


def read_rope(values: ConfigValues, rotary_dim: int) -> tuple[float, RopeScaling | None]:
    """Read base and scaling from the keys of transformers 4 or 5.

    Version 4 writes ``rope_theta`` beside ``rope_scaling``, version 5 puts both into ``rope_parameters``. Where a file
    has both, ``rope_scaling`` counts, as in transformers.
    """
    section = rope_section(values)
    own_theta = section.optional_number("rope_theta", 1.001, 1e30) if section else None
    shared_theta = values.optional_number("rope_theta", 1.001, 1e30)
    theta = own_theta or shared_theta or DEFAULT_ROPE_THETA
    return theta, None if section is None else _read_scaling(section, values, rotary_dim)


def split_rope(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Split the ``rope_parameters`` of transformers 5 for layers of two kinds.

    Those of layers with a window become ``sliding_rope_parameters``, for `read_sliding_theta`.
    """
    both = raw.get("rope_parameters")
    if not isinstance(both, Mapping) or not both.keys() & {FULL, SLIDING}:
        return raw
    return {**raw, "rope_parameters": both.get(FULL), "sliding_rope_parameters": both.get(SLIDING)}


def read_sliding_theta(values: ConfigValues, default: float) -> float:
    """Read the base of the rotary embedding in layers that have a window: see `split_rope`."""
    section = values.optional_section("sliding_rope_parameters")
    if section is None:
        return default
    if _read_scaling(section, values, 2) is not None:
        raise UnsupportedModelError(f"{section.source}: a rope scaling of layers with a window is not supported")
    return section.optional_number("rope_theta", 1.001, 1e30) or default


def ropes_apart(raw: Mapping[str, object]) -> dict[str, object]:
    """Return a file's values with the rotary embedding of each kind of layer under a key of its own."""
    both, found = raw.get("rope_parameters"), {**raw, "rope_parameters": None}
    if isinstance(both, Mapping):
        found |= {f"{kind}_rope": both.get(kind) for kind in (SLIDING, FULL)}
    return found


def read_ropes_apart(values: ConfigValues) -> tuple[float, RopeScaling | None, float]:
    """Read what `ropes_apart` has set apart: base and scaling of layers without a window, base of those that have it.

    "proportional" is a scaling, too.
    """
    theta, scaling = _read_rope_of(values, FULL)
    sliding_theta, other = _read_rope_of(values, SLIDING)
    if other is not None:
        raise UnsupportedModelError(f"{values.source}: a rope scaling of layers with a window is not supported")
    return theta, scaling, sliding_theta


def _read_rope_of(values: ConfigValues, kind: str) -> tuple[float, RopeScaling | None]:
    section = values.optional_section(f"{kind}_rope")
    if section is None:
        raise values.error("rope_parameters", f"an object with {SLIDING} and {FULL}")
    theta, rope_type = section.number("rope_theta", 1.001, 1e30), section.optional_text("rope_type") or "default"
    if rope_type == "default":
        return theta, None
    if rope_type != "proportional":
        raise UnsupportedModelError(f"{section.source}: rope type {rope_type[:40]!r} is not supported")
    factor = section.optional_number("factor", 0.001, 1e6) or 1.0
    rotated = section.optional_number("partial_rotary_factor", 0.0, 1.0)
    return theta, RopeScaling(rope_type, factor, rotated=1.0 if rotated is None else rotated)


def read_rotary_dim(values: ConfigValues, head_dim: int) -> int:
    """Read the rotated channels of each head: ``partial_rotary_factor`` of them, rounded down; an even number."""
    for holder in (rope_section(values), values):
        factor = None if holder is None else holder.optional_number("partial_rotary_factor", 0.0, 1.0)
        if holder is not None and factor is not None:
            rotary_dim = int(head_dim * factor)
            if rotary_dim < 2 or rotary_dim % 2:
                raise holder.error("partial_rotary_factor", f"a part of {head_dim} channels that is even and not 0")
            return rotary_dim
    return head_dim


def refuse_partial_rotary(values: ConfigValues) -> None:
    """Refuse a ``partial_rotary_factor`` below 1."""
    for holder in (values, rope_section(values)):
        if holder and holder.optional_number("partial_rotary_factor", 0.0, 1.0) not in (None, 1.0):
            raise UnsupportedModelError(f"{holder.source}: partial_rotary_factor below 1 is not supported")


def rope_section(values: ConfigValues) -> ConfigValues | None:
    """Return the section of the rotary embedding, by either of its names."""
    return values.optional_section("rope_scaling") or values.optional_section("rope_parameters")


def _read_scaling(section: ConfigValues, values: ConfigValues, rotary_dim: int) -> RopeScaling | None:
    rope_type = section.optional_text("rope_type") or section.optional_text("type") or "default"
    if rope_type in ("su", "yarn") and section.get("short_factor") is not None:
        rope_type = "longrope"  # the first files of Phi-3 call it so
    if section.keys() & {FULL, SLIDING}:
        raise UnsupportedModelError(f"{section.source} differs between layers, which is not supported")
    if rope_type not in ROPE_TYPES:
        raise UnsupportedModelError(
            f"{section.source}: rope type {one_line(rope_type)!r} is not supported;"
            f" supported are {', '.join(ROPE_TYPES)}"
        )
    if rope_type == "default":
        return None
    if rope_type == "llama3":
        return _read_llama3(section, _training_length(section, values))
    if rope_type in ("linear", "dynamic"):
        return RopeScaling(rope_type, section.number("factor", 0.001, 1e6))
    training_length = _training_length(section, values)
    implied_factor = values.integer("max_position_embeddings", 1, MAX_POSITIONS) / training_length
    scaling = RopeScaling(
        rope_type,
        factor=section.optional_number("factor", 0.001, 1e6) or implied_factor,
        original_max_position_embeddings=training_length,
        attention_factor=section.optional_number("attention_factor", 1e-3, 1e3),
    )
    return _with_yarn(section, scaling) if rope_type == "yarn" else _with_factors(section, scaling, rotary_dim // 2)


def _training_length(section: ConfigValues, values: ConfigValues) -> int:
    """Look beside the section first, then in it, then take the full length: transformers' order."""
    key = "original_max_position_embeddings"
    return (
        values.optional_integer(key, 1, MAX_POSITIONS)
        or section.optional_integer(key, 1, MAX_POSITIONS)
        or values.integer("max_position_embeddings", 1, MAX_POSITIONS)
    )


def _read_llama3(section: ConfigValues, training_length: int) -> RopeScaling:
    low = section.number("low_freq_factor", 1e-6, 1e6)
    high = section.number("high_freq_factor", 1e-6, 1e6)
    if high <= low:
        raise section.error("high_freq_factor", f"more than low_freq_factor ({low:g})")
    return RopeScaling(
        rope_type="llama3",
        factor=section.number("factor", 0.001, 1e6),
        original_max_position_embeddings=training_length,
        low_freq_factor=low,
        high_freq_factor=high,
    )


def _with_yarn(section: ConfigValues, scaling: RopeScaling) -> RopeScaling:
    return replace(
        scaling,
        beta_fast=section.optional_number("beta_fast", 0.001, 1e6) or 32.0,
        beta_slow=section.optional_number("beta_slow", 0.001, 1e6) or 1.0,
        mscale=section.optional_number("mscale", 0.0, 1e3),
        mscale_all_dim=section.optional_number("mscale_all_dim", 0.0, 1e3),
        truncate=section.flag("truncate", True),
    )


def _with_factors(section: ConfigValues, scaling: RopeScaling, pairs: int) -> RopeScaling:
    return replace(
        scaling,
        short_factor=section.numbers("short_factor", pairs, 1e-3, 1e6),
        long_factor=section.numbers("long_factor", pairs, 1e-3, 1e6),
    )
