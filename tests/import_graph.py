"""Which module of the package imports which, read from the sources without running them."""

import ast
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
PACKAGE = REPO / "tinychat"


def imported_modules(path):
    """Return every module that a file imports, by full name: at its top, inside functions, for type checkers alone."""
    return names_of(path, ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def names_of(path, nodes):
    """Return the full names that the imports among `nodes` of a file name."""
    modules = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = path.relative_to(REPO).parent.parts
            base = list(parents[: len(parents) + 1 - node.level]) if node.level else []
            base += node.module.split(".") if node.module else []
            modules |= {".".join([*base, alias.name]) for alias in node.names}
    return modules


def is_within(module, part):
    """Return whether a module is `part` or below it."""
    return module == part or module.startswith(part + ".")


def import_graph(folder):
    """Return for each module of a package, by full name, the modules of it that it imports."""
    files = {module_name(path): path for path in folder.rglob("*.py")}
    graph = {}
    for module, path in files.items():
        # A name that is not a module itself is one in the module before it.
        named = {name if name in files else name.rpartition(".")[0] for name in imported_modules(path)}
        graph[module] = named & files.keys() - {module}
    return graph


def module_name(path):
    """Return the full name of a file's module."""
    return ".".join(path.relative_to(REPO).with_suffix("").parts).removesuffix(".__init__")


def room_of(path):
    """Return the part of the package that a file belongs to: a folder, or a module beside the folders."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def room_graph():
    """Return for each room the rooms that its files import anywhere, functions included.

    The package itself and its ``__main__`` are no rooms: they only open the door to others.
    """
    rooms = {room_of(path) for path in PACKAGE.rglob("*.py")} - {"__init__", "__main__"}
    graph = {room: set() for room in rooms}
    for path in PACKAGE.rglob("*.py"):
        if (room := room_of(path)) in rooms:
            named = {name.split(".")[1] for name in imported_modules(path) if name.startswith("tinychat.")}
            graph[room] |= named & rooms - {room}
    return graph
