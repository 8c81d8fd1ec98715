"""Passthrough quantization, "native": a checkpoint's own codes with their size, their scales and offsets.

A weight is ``f * scale * (code - zero) + h * offset``, with a scale and an offset for each row and group of columns,
and factors f and h for each row and span of such groups. Where codes of four bits have a table, ``table[code]`` stands
in the place of ``code - zero``. See `tinychat.kernels.weights` for the order of the bytes.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tinychat.errors import SettingError

# The number format, and its name in model folders; options take that too, as in earlier versions.
NATIVE, STORED_NATIVE = "native", "kept"
LANES = 16
# Columns of a group that activations can share a scale with: dot products take whole lines of 8.
GROUPS = (16, 32, 64, 128, 256)
# Sizes of codes: a linear's are all of one bit, all of two, or of four and eight, which may stand beside each other.
BITS = (1, 2, 4, 8)
# E8M0: powers of two, their exponents and 127. F32 holds what any of them does, F16 what I8 does.
NUMBERS = ("I8", "F16", "F32", "E8M0")


def dtype_named(name: str) -> str:
    """Return the number format by its name in a model folder or an option."""
    return NATIVE if name == STORED_NATIVE else name


@dataclass(frozen=True)
class Form:
    """Storage of the codes of one size of a linear."""

    bits: int  # of a code, one of `BITS`
    numbers: str = "F16"  # type of scales and offsets, one of `NUMBERS`; their factors are float32
    group: int = 32  # columns that share a scale and an offset: 16 to 256, a power of two; of one bit 32 at least
    span: int = 0  # columns that share a factor, a multiple of `group`; 0 for whole rows
    offsets: bool = False  # codes of one bit, and scales of E8M0, have none
    table: bool = False  # whether codes of four bits are places in a table, of which each block of rows has one

    def __post_init__(self) -> None:
        span_fits = type(self.span) is int and self.span >= 0 and self.span % self.group == 0
        group_fits = self.group in GROUPS[self.bits == 1 :]
        if self.bits not in BITS or self.numbers not in NUMBERS or not group_fits or not span_fits:
            raise SettingError(f"{self} is not a form that codes can be stored in")
        if type(self.offsets) is not bool or (self.offsets and (self.bits == 1 or self.numbers == "E8M0")):
            raise SettingError(f"{self} has no valid offsets")
        if type(self.table) is not bool or (self.table and self.bits != 4):
            raise SettingError(f"{self} has no valid table")


def joined(forms: Iterable[Form]) -> Form:
    """Return the form that holds all values of some forms of one size of codes."""
    first, *others = forms
    for form in others:
        numbers, has_table = first.numbers, first.table or form.table
        # Offsets that make up for a zero of the codes, where no table does, need not fit beside whole scales.
        if form.numbers != numbers or (first.offsets != form.offsets and not has_table):
            numbers = "F16" if {form.numbers, numbers} <= {"I8", "F16"} else "F32"
        first = Form(
            first.bits,
            numbers,
            math.gcd(first.group, form.group),
            math.gcd(first.span, form.span),
            first.offsets or form.offsets,
            has_table,
        )
    return first


@dataclass(frozen=True)
class PassthroughLinear:
    """Storage of a passthrough linear."""

    forms: tuple[Form, ...]  # one for each size of codes that there is, see `BITS`
    # Size of the codes by layer (one outside of layers) and by the tensors that make up the rows. They differ within a
    # layer only where all tensors but the last have whole blocks of 16 rows.
    bits: tuple[tuple[int, ...], ...]

    def blocks(self, rows: tuple[int, ...]) -> list[list[int]]:
        """Return the size of the codes of each block of 16 rows, by layer; `rows` are those of each tensor."""
        by_layer = []
        for layer in self.bits:
            if len(set(layer)) == 1:
                by_layer.append([layer[0]] * -(-sum(rows) // LANES))
            else:
                by_layer.append([bits for bits, count in zip(layer, rows) for _ in range(-(-count // LANES))])
        return by_layer


def read_linear(value: object, is_older: bool = False) -> PassthroughLinear:
    """Read the `dataclasses.asdict` of a linear; anything else is a TypeError, ValueError or SettingError.

    Those that are older have offsets wherever codes have four bits.
    """
    if not isinstance(value, dict) or value.keys() != {"forms", "bits"}:
        raise ValueError("no description of a linear")
    forms = tuple(Form(**form) for form in value["forms"])
    if is_older:
        forms = tuple(replace(form, offsets=form.offsets or form.bits == 4) for form in forms)
    bits = tuple(tuple(layer) for layer in value["bits"])
    sizes = [form.bits for form in forms]
    if sizes not in ([1], [2], [4], [8], [4, 8]) or {size for layer in bits for size in layer} != set(sizes):
        raise ValueError("other sizes of codes")
    if len(forms) > 1 and not (forms[0].offsets or forms[0].table):
        raise ValueError("codes of four bits count from another zero than those of eight")
    return PassthroughLinear(forms, bits)
