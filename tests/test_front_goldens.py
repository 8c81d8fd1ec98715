"""Everything that a user of the front half sees stays as recorded: see scripts/record_front.py."""

import pytest
from front.recordings import RECORDINGS, golden_of


@pytest.mark.parametrize("name", RECORDINGS)
def test_nothing_visible_has_changed(name, tmp_path):
    found, golden = RECORDINGS[name](tmp_path), golden_of(name)
    for file in golden.keys() & found.keys():
        assert found[file] == golden[file], f"{name}/{file}; if that was meant: scripts/record_front.py {name}"
    assert sorted(found) == sorted(golden)
