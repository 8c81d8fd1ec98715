"""What the decoder computes stays what it was, bit for bit: see scripts/make_digests.py."""

import json
from pathlib import Path

import digests
import pytest

GOLDEN = Path(__file__).parent / "goldens" / "digests.json"


@pytest.mark.parametrize("case", digests.SMALL, ids=str)
def test_no_bit_has_changed(case, tmp_path):
    golden = json.loads(GOLDEN.read_text())[str(case)]
    found = digests.digests_of(case, tmp_path)
    changed = [state for state in golden if found.get(state) != golden[state]]
    assert found == golden, f"changed: {changed}; if that was meant, write {GOLDEN.name} anew"
