"""The rules of the house: import arrows, file sizes, light commands."""

import ast
import os
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

import pytest
from import_graph import PACKAGE, REPO, import_graph, imported_modules, is_within, room_of

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
sources = pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)

MAX_LINES = 450

# What each part may import of tinychat, beside itself, tinychat.errors and tinychat.files. Parts that are not listed
# (the command line and the package itself) stand on top and may import everything.
ARROWS = {
    "errors": [],
    "setting_kinds": [],
    "settings": ["setting_kinds"],
    "files": ["file_lock"],
    "user_folders": [],
    "file_lock": [],
    "held_signals": [],
    "limited_process": ["worker_threads"],
    "worker_threads": [],
    "installing": [],
    "kernels": ["file_lock", "processor", "user_folders"],
    "json_file": [],
    "configuration": ["json_file", "mcp.server_settings", "settings", "user_folders"],
    "models": ["json_file"],
    "images": ["engine", "installing", "json_file", "models"],
    "engine": ["file_lock", "held_signals", "kernels", "machine", "macos", "models"],
    "checkpoint": [
        "json_file",
        "models.altup",
        "models.architectures",
        "models.clipped_linears",
        "models.config",
        "models.config_values",
        "models.decoder",
        "models.delta_net",
        "models.dense",
        "models.draft_head",
        "models.drafter",
        "models.embedder",
        "models.family",
        "models.image_preparation",
        "models.mamba",
        "models.multimodal",
        "models.passthrough",
        "models.ranker",
        "models.score_head",
        "models.selective",
        "models.tensors",
        "models.varied_layers",
        "models.vision",
        "settings",
        "text.split_patterns",
    ],
    "store": [
        "checkpoint",
        "engine.context",
        "json_file",
        "machine",
        "models.architectures",
        "models.config",
        "models.drafter",
        "models.embedder",
        "models.multimodal",
        "models.passthrough",
        "models.ranker",
        "models.tensors",
        "models.varied_layers",
        "models.vision",
        "user_folders",
    ],
    "conversion": [
        "checkpoint",
        "engine.arguments",
        "engine.dims",
        "engine.forward",
        "engine.mlp_parameters",
        "engine.named_tensors",
        "engine.parameters",
        "engine.precompile",
        "engine.stages",
        "file_lock",
        "generate",
        "kernels",
        "machine",
        "models",
        "store.estimates",
        "text",
    ],
    "text": ["json_file", "limited_process", "worker_threads"],
    "generate": [
        "configuration",
        "engine",
        "held_signals",
        "images",
        "installing",
        "json_file",
        "limited_process",
        "memory_shortage",
        "models",
        "settings",
        "text",
        "tools",
    ],
    "terminal": ["generate.reply", "text", "user_folders"],
    "conversation": ["generate", "images", "settings", "text", "tools", "user_folders"],
    "chat": [
        "conversation",
        "engine.context",
        "engine.saved_caches",
        "generate",
        "images",
        "json_file",
        "mcp",
        "setting_kinds",
        "settings",
        "terminal",
        "text",
        "tools",
        "user_folders",
    ],
    "api": [
        "checkpoint",
        "conversion",
        "file_lock",
        "json_file",
        "generate",
        "models.drafter",
        "models.passthrough",
        "models.ranker",
        "settings",
        "store",
        "text",
        "user_folders",
    ],
    "machine": ["control_group", "macos", "windows"],
    "control_group": [],
    "memory_shortage": ["control_group", "machine", "macos"],
    "processor": ["macos"],
    "macos": [],
    "windows": [],
    "bench": [
        "checkpoint",
        "conversion",
        "engine",
        "generate",
        "kernels",
        "machine",
        "models",
        "processor",
        "rows",
        "store",
        "text",
        "tools.formats",
        "user_folders",
        "windows",
    ],
    "tools": ["json_file", "limited_process", "text", "user_folders"],
    "mcp": ["held_signals", "installing", "json_file", "text.guard", "tools", "user_folders"],
    "client": [
        "generate.precedence",
        "generate.prompt",
        "generate.reply",
        "generate.request",
        "generate.run",
        "generate.stream",
        "images.data_url",
        "settings",
        "tools.definitions",
        "tools.formats",
        "user_folders",
    ],
    "serve": [
        "client.running_servers",
        "conversation",
        "engine.ids",
        "engine.saved_caches",
        "engine.sequence",
        "generate",
        "json_file",
        "models.architectures",
        "models.embedder",
        "setting_kinds",
        "settings",
        "store.catalog",
        "store.local",
        "text",
        "tools",
        "user_folders",
    ],
    "rows": [
        "api",
        "conversation",
        "engine.system_scheduler",
        "file_lock",
        "generate",
        "installing",
        "machine",
        "setting_kinds",
        "settings",
        "store.default_model",
        "tools.schema_reference",
        "user_folders",
        "worker_threads",
    ],
    "ray": ["api", "generate", "rows", "serve", "settings", "store.default_model"],
    "commands": [
        "api",
        "bench",
        "chat",
        "checkpoint",
        "client",
        "configuration",
        "conversation",
        "conversion",
        "engine.context",
        "engine.saved_caches",
        "file_lock",
        "generate",
        "held_signals",
        "images.image",
        "installing",
        "machine",
        "models.folder",
        "serve",
        "models.passthrough",
        "json_file",
        "mcp",
        "models.architectures",
        "models.embedder",
        "models.ranker",
        "models.shapes",
        "rows",
        "setting_kinds",
        "settings",
        "store",
        "terminal",
        "text.code_block",
        "text.parts",
        "tools",
        "user_folders",
        "worker_threads",
    ],
}
KERNEL_IMPORTS = {"numpy", "numba", "llvmlite", "tinychat"} | sys.stdlib_module_names
HEAVY = {"numba", "llvmlite", "torch", "transformers", "tokenizers", "sentencepiece", "huggingface_hub", "safetensors"}
# What draws, and what serves programs with a loop of their own.
FRONT = {"rich", "jinja2", "prompt_toolkit", "asyncio"}
MAY_PRINT = ("cli.py", "commands/", "terminal/rendering.py")


@sources
def test_imports_follow_the_arrows(path):
    part = room_of(path)
    if part not in ARROWS:
        return
    allowed = [f"tinychat.{name}" for name in [part, "errors", "files", *ARROWS[part]]]
    ours = [module for module in imported_modules(path) if is_within(module, "tinychat")]
    wrong = [module for module in ours if not any(is_within(module, name) for name in allowed)]
    assert not wrong, f"{path.name} belongs to {part}, which may not import {wrong}"


def cycle_of(graph):
    """Return the modules of a cycle of imports, the first one at the end once more; none if there is no cycle."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1][::-1]
    return []


def test_imports_have_no_cycles_types_included():
    graph = import_graph(PACKAGE)
    cycle = cycle_of(graph)
    assert not cycle, f"break this cycle of imports: {' imports '.join(cycle)}"
    order = list(TopologicalSorter(graph).static_order())
    assert order.index("tinychat.errors") < order.index("tinychat.commands.loading") < order.index("tinychat.cli")


@pytest.mark.parametrize(
    "line",
    [
        "import house.cellar",
        "from house import cellar",
        "from .cellar import BEAM",
        "if True:\n    from house.cellar import BEAM",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house.cellar import BEAM",
        "def open():\n    import house.cellar",
    ],
)
def test_a_cycle_of_imports_is_named(line, tmp_path, monkeypatch):
    monkeypatch.setattr("import_graph.REPO", tmp_path)
    (tmp_path / "house").mkdir()
    files = {"attic": "from house.roof import BEAM", "roof": line, "cellar": "import house.attic", "door": "import os"}
    for name, text in files.items():
        (tmp_path / "house" / f"{name}.py").write_text(text)
    cycle = cycle_of(import_graph(tmp_path / "house"))
    following = {"house.attic": "house.roof", "house.roof": "house.cellar", "house.cellar": "house.attic"}
    assert cycle[0] == cycle[-1] and len(cycle) == 4
    assert all(following[module] == imported for module, imported in pairwise(cycle))
    (tmp_path / "house/cellar.py").write_text("import house.door")
    assert cycle_of(import_graph(tmp_path / "house")) == []


def twos(text):
    """Yield the lines that multiply by two, take a half or a remainder, or step by two: turns counted in pairs."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.BinOp(left=left, op=ast.Mod() | ast.FloorDiv() | ast.Mult(), right=right):
                found = [left, right]
            case ast.Slice(step=step):
                found = [step]
            case ast.Call(func=ast.Name(id="range"), args=[_, _, step]):
                found = [step]
            case ast.Assign(targets=[ast.Name(id="FORMAT")]):
                continue  # of files, not of turns
            case ast.Assign(value=value) | ast.AnnAssign(value=value) | ast.AugAssign(value=value):
                found = [value]
            case _:
                continue
        for value in found:
            match value.operand if isinstance(value, ast.UnaryOp) else value:
                case ast.Constant(value=int(2)):
                    yield node.lineno


@pytest.mark.parametrize("path", [path for part in ("chat", "conversation") for path in (PACKAGE / part).glob("*.py")])
def test_no_code_counts_the_turns_of_a_conversation_in_pairs(path):
    """An exchange is a message of the user and all that follows: calls of tools, their results, replies."""
    assert [*twos(path.read_text(encoding="utf-8"))] == []


def test_pairs_are_seen():
    counted = "a % 2\nb // 2\n2 * c\nd[-2 * e]\nfor f in range(0, g, 2): h[::2]\n_PER_TURN = 2\ni += 2\n"
    assert sorted(twos(counted)) == [1, 2, 3, 4, 5, 5, 6, 7]
    assert [*twos("a[-2]\nrange(2, 9)\nb > 2\nc << 2\n4 * d > 3 * e\nSECONDS = 2.0\nFORMAT = 2\n")] == []


@pytest.mark.parametrize("path", sorted((PACKAGE / "kernels").glob("*.py")), ids=lambda path: path.name)
def test_kernels_import_only_numpy_and_numba(path):
    assert {module.split(".")[0] for module in imported_modules(path)} <= KERNEL_IMPORTS


def test_references_do_not_know_the_kernels():
    modules = [module for module in imported_modules(REPO / "tests/reference.py") if is_within(module, "tinychat")]
    # What a checkpoint calls its parts is all that they may know.
    known = "tinychat.models.architectures", "tinychat.models.tensors"
    assert all(any(is_within(module, name) for name in known) for module in modules)


@sources
def test_files_stay_small_and_have_a_purpose(path):
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MAX_LINES, f"{lines} lines: split it by purpose"
    assert path.stem not in ("utils", "util", "helpers", "misc", "common")


@sources
def test_docstrings_begin_with_the_thing_or_the_action(path):
    nodes = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, DOCUMENTED)]
    first_lines = [(ast.get_docstring(node) or "").partition("\n")[0] for node in nodes]
    pronouns = re.compile(r"(What|Return what|Say|Do as|Do the|So many|Whose)\b")
    assert list(filter(pronouns.match, first_lines)) == []


def test_classes_have_names_of_their_own():
    texts = [path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")]
    names = re.findall(r"^class (\w+)", "\n".join(texts), re.MULTILINE)
    assert sorted(names) == sorted(set(names))


def test_tests_have_names_of_their_own():
    # pytest imports the files of all folders by their bare names, and takes the second of a name for the first.
    names = [path.name for path in REPO.glob("tests/**/test_*.py")]
    assert sorted(names) == sorted(set(names))


@sources
def test_only_the_front_end_prints(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    prints = [node.lineno for node in calls if node.func.id == "print"]
    assert not prints or str(path.relative_to(PACKAGE)).startswith(MAY_PRINT), f"print() in lines {prints}"


def run_tinychat(code, *arguments):
    """Run Python code in a fresh process with ``sys.argv`` as ``tinychat ARGUMENTS`` would have it."""
    environment = os.environ | {"COLUMNS": "200", "NO_COLOR": "1"}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)


RUN = "import runpy, sys; sys.argv[0] = 'tinychat'; runpy.run_module('tinychat', run_name='__main__')"
RUN_AND_LIST_MODULES = f"""
try:
    {RUN}
except SystemExit:
    pass
sys.stderr.write("modules: " + " ".join(sys.modules))
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["config"],
        ["models"],
        ["models", "--available"],
        ["models", "--json"],
        ["show", "demo"],
        ["completion", "zsh"],
        ["mcp", "list"],
        ["rm", "no-such-model"],
    ],
    ids=" ".join,
)
def test_light_commands_import_nothing_heavy(arguments):
    result = run_tinychat(RUN_AND_LIST_MODULES, *arguments)
    modules = result.stderr.rpartition("modules: ")[2].split()
    assert "click" in modules, result.stderr
    assert (HEAVY | FRONT) & set(modules) == set()


# What a one-shot completion of a model whose kernels are compiled does without.
NOT_FOR_A_START = HEAVY - {"llvmlite", "tokenizers"} | FRONT


def test_a_warm_completion_imports_no_compiler():
    arguments = ["complete", "demo", "-p", "Hi", "--max-tokens", "1", "--temperature", "0"]
    for _ in range(2):
        result = run_tinychat(RUN_AND_LIST_MODULES, *arguments)
        assert result.stdout.strip(), result.stderr
    modules = result.stderr.rpartition("modules: ")[2].split()
    assert {"numpy", "llvmlite", "tokenizers"} <= set(modules), result.stderr
    assert NOT_FOR_A_START & set(modules) == set()


@pytest.mark.parametrize(
    "name",
    [
        "scripts/environment",
        "scripts/chat",
        "scripts/test",
        "scripts/check",
        "scripts/lint",
        "scripts/fuzz",
        "scripts/soak",
        "scripts/signals",
        "scripts/emulate",
    ],
)
def test_scripts_are_posix_shell(name):
    assert os.access(REPO / name, os.X_OK)
    subprocess.run(["sh", "-n", REPO / name], check=True)


def test_tests_that_the_table_of_faults_names_are_there():
    named = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", (REPO / "tests/README.md").read_text(encoding="utf-8"))
    assert named
    for file, test in named:
        text = (REPO / "tests" / file).read_text(encoding="utf-8")
        assert not test or f"def {test}(" in text, f"{file} has no {test}"
