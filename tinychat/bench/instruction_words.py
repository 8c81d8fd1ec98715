"""Words for each instruction set: how many instructions its products take, and where a better one is not used.

Counts are of the linear of int4 weights, its tile of most tokens: scripts/count_instructions.py.
"""

from collections.abc import Collection

from tinychat.processor import ARM, X86

# By name of TINYCHAT_ISA.
SPEED = {
    "amx": "16,384 products an instruction, on tile registers, from eleven tokens on; else as avx512vnni",
    "amx-model": "for tests only: tile registers are computed one product at a time",
    "avx512vnni": "the fastest of vectors: 64 products an instruction, 21 instructions in all for 1,000 products",
    "avxvnni": "32 products an instruction, 78 instructions in all for 1,000 products, where avx512vnni takes 21",
    "avx2": "32 products in two or three instructions, 209 in all for 1,000 products, where avxvnni takes 78",
    "neon-i8mm": "32 products an instruction, 16 for one token alone; 68 instructions in all for 1,000 products",
    "neon-dotprod": "16 products an instruction, 90 instructions in all for 1,000 products, where neon-i8mm takes 68",
    "generic": "no dot products of bytes: 1,453 (ARM) to 2,746 instructions (x86) for 1,000 products",
}
# Features, by LLVM's names, that kernels have no form for: by architecture, and the sets that are taken instead.
UNUSED: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
    X86: {"avx512f": ("AVX-512 without VNNI", ("avx2", "generic"))},
    ARM: {"sve": ("SVE", ("neon-i8mm", "neon-dotprod", "generic"))},
}


def words_for(isa: str, architecture: str, features: Collection[str]) -> list[str]:
    """Describe the speed of an instruction set, and features of this processor that kernels do not use."""
    unused = UNUSED.get(architecture, {}).items()
    found = [what for feature, (what, sets) in unused if feature in features and isa in sets]
    lines = [SPEED[isa], *(f"{what} is not used: kernels have no form for it" for what in found)]
    if architecture not in UNUSED:
        lines.append(f"there is nothing better for {architecture} yet: kernels have forms for {X86} and {ARM}")
    return lines
