"""Relative links of all pages lead to files and headings that are there."""

import re

import pytest
from documents import REPO, pages

PAGES = pages() | {
    name: (REPO / name).read_text(encoding="utf-8")
    for name in ("SECURITY.md", "CHANGELOG.md", "tests/README.md", "weights/README.md")
}
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`]*`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_ADDRESS = re.compile(r"[a-z]+:")


def links_of(text):
    """Return where the relative links of a page lead; code is no link, but may be the text of one."""
    found = _LINK.findall(_CODE.sub("", _FENCE.sub("", text)))
    return [link for link in found if not _ADDRESS.match(link)]


def anchors_of(text):
    """Return the anchors that a hub makes of a page's headings: small letters, hyphens for spaces, no punctuation."""
    anchors = []
    for heading in re.findall(r"^#+ (.+)$", _FENCE.sub("", text), re.MULTILINE):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        again = sum(re.fullmatch(rf"{re.escape(name)}(-\d+)?", other) is not None for other in anchors)
        anchors.append(f"{name}-{again}" if again else name)
    return {*anchors}


def broken_links(page, text):
    """Return the links of a page that lead nowhere."""
    broken = []
    for link in links_of(text):
        file, _, anchor = link.partition("#")
        target = (REPO / page).parent / file if file else REPO / page
        if not target.exists() or (anchor and anchor not in anchors_of(target.read_text(encoding="utf-8"))):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    assert broken_links(page, PAGES[page]) == []


def test_every_page_is_linked_from_another():
    linked = {
        ((REPO / page).parent / link.partition("#")[0]).resolve()
        for page, text in PAGES.items()
        for link in links_of(text)
    }
    assert [page for page in PAGES if page != "README.md" and (REPO / page).resolve() not in linked] == []


def test_broken_links_are_found():
    text = "[a](docs/none.md) [b](README.md#nowhere) ![c](chat.svg) `[d](e.md)` [f](https://example.org/g)\n"
    assert broken_links("README.md", text) == ["docs/none.md", "README.md#nowhere"]
    assert broken_links("docs/page.md", "[a](../README.md#limits) [b](README.md)") == ["README.md"]


def test_anchors_are_those_of_headings():
    text = "# A `b`: what?\n## [Links](x.md), too\n```sh\n# no heading\n```\n## Twice\n## Twice\n"
    assert anchors_of(text) == {"a-b-what", "links-too", "twice", "twice-1"}
