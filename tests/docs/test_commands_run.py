"""The commands of README.md and docs/ run with the demo model, but for those of marked blocks."""

import subprocess
import sys

import pytest
from documents import HOW_TO_MARK, blocks_of, pages
from workplace import make_workplace

BLOCKS = [block for page, text in pages().items() for block in blocks_of(page, text)]
CONFIGURATION = next(block.text for block in BLOCKS if block.language == "toml")


# Conversions, and kernels that no other test compiles.
SLOW = ("tinychat convert", "TINYCHAT_ISA=")


def as_case(block):
    """Return a block as a case of a test, which may be slow."""
    is_slow = any(text in block.text for text in SLOW)
    return pytest.param(block, id=str(block), marks=[pytest.mark.slow] * is_slow)


@pytest.mark.skipif(sys.platform == "win32", reason="shell scripts")
@pytest.mark.parametrize("block", [as_case(block) for block in BLOCKS if (block.language, block.marker) == ("sh", "")])
def test_commands_run(block, tmp_path, monkeypatch):
    workplace = make_workplace(tmp_path, monkeypatch)
    if "config --init" not in block.text:
        (workplace / "home" / "config.toml").write_text(CONFIGURATION)
    command = ["bash", "-euo", "pipefail", "-c", block.text]
    result = subprocess.run(
        command, cwd=workplace, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, f"{block} fails; {HOW_TO_MARK}\n{result.stderr}"
