"""The Python snippets of README.md and docs/ run, each page from its first to its last, with the demo model."""

import pytest
from documents import HOW_TO_MARK, blocks_of, pages
from workplace import make_workplace

SNIPPETS = {
    page: [block for block in blocks_of(page, text) if (block.language, block.marker) == ("python", "")]
    for page, text in pages().items()
}


def as_case(page):
    """Return a page as a case of a test; a conversion takes long."""
    converts = any("tinychat.convert" in block.text for block in SNIPPETS[page])
    return pytest.param(page, marks=[pytest.mark.slow] * converts)


@pytest.mark.parametrize("page", [as_case(page) for page, blocks in SNIPPETS.items() if blocks])
def test_snippets_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(make_workplace(tmp_path, monkeypatch))
    names = {"__name__": "__main__"}
    written = ""
    for block in SNIPPETS[page]:
        try:
            exec(compile(block.text, str(block), "exec"), names)
        except Exception as error:
            raise AssertionError(f"{block} fails; {HOW_TO_MARK}") from error
        out = capsys.readouterr().out
        assert out[-1:] in ("", "\n"), f"{block}: what is printed next would stand in the same line"
        written += out
    assert written.strip()


def test_the_pages_for_programmers_have_snippets():
    assert SNIPPETS["README.md"] and SNIPPETS["docs/python.md"]
