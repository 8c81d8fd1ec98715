"""Each instruction set has words for a user, and a processor is told what of it is not used."""

import pytest

from tinychat.bench.instruction_words import SPEED, UNUSED, words_for
from tinychat.kernels import setup
from tinychat.processor import ARM, X86


def test_every_instruction_set_has_words():
    vectors = {isa for sets in setup.ISA_FEATURES.values() for isa in sets}
    assert SPEED.keys() == {setup.AMX, setup.AMX_MODEL, "generic", *vectors}
    assert UNUSED.keys() == setup.ISA_FEATURES.keys()
    for architecture, features in UNUSED.items():
        for _, sets in features.values():
            assert {*sets} <= {*setup.ISA_FEATURES[architecture], "generic"}


@pytest.mark.parametrize(
    ("isa", "architecture", "features", "more"),
    [
        ("avx512vnni", X86, {"avx512f"}, []),
        ("avx2", X86, {"avx512f"}, ["AVX-512 without VNNI is not used: kernels have no form for it"]),
        ("avx2", X86, {"sve"}, []),
        ("neon-i8mm", ARM, {"sve"}, ["SVE is not used: kernels have no form for it"]),
        (
            "generic",
            "riscv64",
            set(),
            ["there is nothing better for riscv64 yet: kernels have forms for x86_64 and arm64"],
        ),
    ],
)
def test_what_is_not_used_is_told(isa, architecture, features, more):
    assert words_for(isa, architecture, features) == [SPEED[isa], *more]
