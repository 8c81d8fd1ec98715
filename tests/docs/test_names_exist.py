"""Paths, tests, modules and decorators that the pages name in code exist, and excerpts are those of the source."""

import ast
import functools
import importlib
import re
import textwrap

import pytest
from documents import REPO, blocks_of, pages

PAGES = pages()
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(r"(?:tinychat|scripts|tests|docs|weights)/\S*")
_DOTTED = re.compile(r"tinychat(?:\.\w+)+")
# Names of files, which look like names of modules.
_FILES = (".json", ".toml", ".html")
_DECORATOR = re.compile(r"@(\w+)")
_MEMBER = re.compile(r"([A-Z]\w+)\.(\w+)")
# Pages whose excerpts are of this file, word by word.
EXCERPTS = {"docs/adding-a-family.md": "tinychat/models/families/starcoder2.py"}


def code_of(text):
    """Return what stands in code within the sentences of a page."""
    return _CODE.findall(_FENCE.sub("", text))


def has_path(code):
    """Return whether a path of the repository that begins some code exists, with the test that it may name."""
    path, _, test = code.split()[0].partition("::")
    file = REPO / path
    return bool([*REPO.glob(path)]) and (not test or f"def {test}(" in file.read_text(encoding="utf-8"))


def has_name(dotted):
    """Return whether a dotted name is that of a module, or of something in one."""
    parts = dotted.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for name in parts[count:]:
            if not hasattr(found, name):
                return False
            found = getattr(found, name)
        return True
    return False


def is_decorator(name):
    """Return whether a file of the package defines a function, or a variable, of this name."""
    return any(re.search(rf"^(def {name}\(|{name} = )", text, re.MULTILINE) for text in sources())


def is_member(kind, name):
    """Return whether a file of the package defines a class, and something of this name in its body."""
    body = rf"^class {kind}\b(?:.*\n(?!\S))*?    (?:(?:async )?def )?{name}\b(?:\(|:| =)"
    return any(re.search(body, text, re.MULTILINE) for text in sources())


@functools.cache
def sources():
    return [file.read_text(encoding="utf-8") for file in sorted((REPO / "tinychat").rglob("*.py"))]


def wrong_names(text):
    """Return the code of a page that names what does not exist."""
    wrong = []
    for code in code_of(text):
        if _PATH.match(code) and not has_path(code):
            wrong.append(code)
        wrong += [name for name in _DOTTED.findall(code) if not name.endswith(_FILES) and not has_name(name)]
        member = _MEMBER.fullmatch(code)
        wrong += [code] * bool(member and not is_member(*member.groups()))
        wrong += [f"@{name}" for name in _DECORATOR.findall(code) if code.startswith("@") and not is_decorator(name)]
    return wrong


@pytest.mark.parametrize("page", PAGES)
def test_names_exist(page):
    assert wrong_names(PAGES[page]) == []


@pytest.mark.parametrize("page", EXCERPTS)
def test_excerpts_are_those_of_the_source(page):
    source = (REPO / EXCERPTS[page]).read_text(encoding="utf-8")
    excerpts = [block.text for block in blocks_of(page, PAGES[page]) if block.language == "py"]
    assert excerpts
    assert [text for text in excerpts if text.strip() not in source] == []


@pytest.mark.parametrize("page", PAGES)
def test_excerpts_are_python(page):
    for block in blocks_of(page, PAGES[page]):
        if block.language == "py":
            text = textwrap.dedent(block.text)
            # Lines of a function return, and those of a file are no function's.
            is_whole = text.startswith(('"""', "def ", "@"))
            ast.parse(text if is_whole else "def excerpt():\n" + textwrap.indent(text, "    "), str(block))


HOUR = PAGES["docs/read-in-an-hour.md"].split("\n## ")[1:-1]


@pytest.mark.parametrize("section", HOUR, ids=lambda section: section.partition(":")[0])
def test_the_hour_names_what_is_in_its_files(section):
    named = section.partition(" ")[2].partition(":")[0]
    (file,) = [path for path in (REPO / named, REPO / "tinychat" / named) if path.is_file()]
    linked = [REPO / "docs" / link for link in re.findall(r"\((\.\./\S+\.py)\)", section)]
    text = "".join(path.read_text(encoding="utf-8") for path in (file, *linked))
    words = {word for code in code_of(section) for word in re.findall(r"[A-Za-z_]\w+", code)}
    assert [word for word in words if not re.search(rf"\b{word}\b", text)] == []


def test_the_hour_takes_an_hour():
    table = PAGES["docs/read-in-an-hour.md"].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \|.*\| (\d+) \|$", table, re.MULTILINE)
    assert [int(number) for number, _ in rows] == [*range(1, len(HOUR) + 1)] == [*range(1, 11)]
    assert sum(int(minutes) for _, minutes in rows) == 60


def test_wrong_names_are_found():
    assert wrong_names("`tinychat/none.py` `tests/*.none` `tinychat.load(x)` `tinychat.json` `docs/*.md`") == [
        "tinychat/none.py",
        "tests/*.none",
    ]
    assert wrong_names("`tinychat.none` `tinychat.errors.None_`") == ["tinychat.none", "tinychat.errors.None_"]
    assert wrong_names("`tests/test_house.py::none` `tests/test_house.py`") == ["tests/test_house.py::none"]
    assert wrong_names("`@noinline` `@none`") == ["@none"]
    named = "`Driver.step` `KVCache.length` `Linear.scale` `Driver.none` `None_.step` `BlockPool.step`"
    assert wrong_names(named) == ["Driver.none", "None_.step", "BlockPool.step"]
