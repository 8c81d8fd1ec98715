"""The Python snippets of README.md and docs/ run, one page after another, with the demo model."""

import pytest
from documents import blocks_of, pages
from workplace import make_workplace

SNIPPETS = {
    page: [block for block in blocks_of(page, text) if block.language == "python"] for page, text in pages().items()
}


def as_case(page):
    """Return a page as a case of a test; a conversion takes long."""
    converts = any("tinychat.convert" in block.text for block in SNIPPETS[page])
    return pytest.param(page, marks=[pytest.mark.slow] * converts)


@pytest.mark.parametrize("page", [as_case(page) for page, blocks in SNIPPETS.items() if blocks])
def test_snippets_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(make_workplace(tmp_path, monkeypatch))
    names = {"__name__": "__main__"}
    try:
        for block in SNIPPETS[page]:
            assert not block.marker, f"{block}: snippets run as they are"
            exec(compile(block.text, str(block), "exec"), names)
    finally:
        if "model" in names:
            names["model"].close()
    assert capsys.readouterr().out.strip()
