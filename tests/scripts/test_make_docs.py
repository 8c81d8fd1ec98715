"""The tables of README.md and docs/ are those that scripts/make_docs.py writes from the code."""

import make_docs
import pytest

from tinychat.settings import SETTINGS


def stale_tables(text):
    """Return the names of the tables of a page that are not those of the present code."""
    return [found[2] for found in make_docs.TABLE.finditer(text) if make_docs.with_tables(found[0]) != found[0]]


@pytest.mark.parametrize("path", make_docs.pages(), ids=lambda path: path.name)
def test_tables_are_those_of_today(path):
    stale = stale_tables(path.read_text(encoding="utf-8"))
    assert not stale, f"{path.name}: stale tables {', '.join(stale)}; run {make_docs.COMMAND}"


def test_every_table_has_a_page():
    text = "".join(path.read_text(encoding="utf-8") for path in make_docs.pages())
    assert {name for name in make_docs.TABLES if f"<!-- table: {name}" not in text} == set()
    assert {row.scope for row in SETTINGS.values() if f"<!-- table: settings {row.scope} -->" not in text} == set()


def test_stale_and_unknown_tables_are_found():
    page = "a\n<!-- table: exit codes -->\n| code |\n<!-- end of table -->\nb\n"
    assert stale_tables(page) == ["exit codes"]
    assert stale_tables(make_docs.with_tables(page)) == []
    with pytest.raises(ValueError, match="unknown table 'exits'; expected one of commands, "):
        make_docs.with_tables("<!-- table: exits -->\n<!-- end of table -->\n")
