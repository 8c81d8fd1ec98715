"""Install tinychat as users do, with pip, uv and pipx and each interpreter, and let the installed commands answer.

    .venv/bin/python -P scripts/try_installers.py python3.11 python3.13 ... [--installers pip uv pipx]

The wheel is built once, and must have every file of the package that is no Python. Each installation has folders of its
own, so that nothing of the user changes; packages come from the index that pip knows. Of each, `tinychat`,
`python -m tinychat`, `doctor` and the bundled model must answer from outside of the repository, all in the same words.
Prints a table; exit code 1 if one fails.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
SCRIPTS = "Scripts" if sys.platform == "win32" else "bin"
ANSWER = ("complete", "demo", "--prompt", "Once upon a time", "--max-tokens", "8", "--temperature", "0")


def run(command: list[str], folder: Path, **variables: str) -> str:
    """Run a command in a folder; return its output, or raise with the end of its messages."""
    ours = ("PYTHON", "TINYCHAT_", "VIRTUAL_ENV", "PIPX_", "UV_TOOL_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    environment |= {"TINYCHAT_CACHE": str(folder / "kernels"), "XDG_STATE_HOME": str(folder / "state")} | variables
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:3])}: {(done.stderr or done.stdout).strip()[-300:]}")
    return done.stdout.strip()


def by_pip(python: str, wheel: Path, folder: Path, tools: Path) -> Path:
    """Install into a new environment; return the folder of its programs."""
    run([python, "-P", "-m", "venv", str(folder / "env")], folder)
    programs = folder / "env" / SCRIPTS
    run([str(programs / "python"), "-P", "-m", "pip", "install", "--quiet", str(wheel)], folder)
    return programs


def by_uv(python: str, wheel: Path, folder: Path, tools: Path) -> Path:
    """Install as a tool of uv; return the folder of its environment's programs."""
    variables = {"UV_TOOL_DIR": str(folder / "tools"), "UV_TOOL_BIN_DIR": str(folder / "links")}
    run([str(tools / "uv"), "tool", "install", "--quiet", "--python", python, str(wheel)], folder, **variables)
    run([str(folder / "links" / "tinychat"), "--version"], folder)
    return folder / "tools" / "tinychat" / SCRIPTS


def by_pipx(python: str, wheel: Path, folder: Path, tools: Path) -> Path:
    """Install as a tool of pipx; return the folder of its environment's programs."""
    variables = {"PIPX_HOME": str(folder / "pipx"), "PIPX_BIN_DIR": str(folder / "links")}
    run([str(tools / "pipx"), "install", "--quiet", "--python", python, str(wheel)], folder, **variables)
    run([str(folder / "links" / "tinychat"), "--version"], folder)
    return folder / "pipx" / "venvs" / "tinychat" / SCRIPTS


INSTALLERS: dict[str, Callable[[str, Path, Path, Path], Path]] = {"pip": by_pip, "uv": by_uv, "pipx": by_pipx}


def answers(programs: Path, folder: Path) -> tuple[str, str]:
    """Return version and answer of an installed package, by both of its commands."""
    command, python = str(programs / "tinychat"), str(programs / "python")
    versions = {run([command, "--version"], folder), run([python, "-P", "-m", "tinychat", "--version"], folder)}
    if len(versions) != 1:
        raise RuntimeError(f"commands of different versions: {sorted(versions)}")
    run([command, "doctor"], folder)
    return versions.pop(), run([command, *ANSWER], folder)


def missing_files(wheel: Path) -> list[str]:
    """Return the files of the package that are no Python and not in a wheel."""
    listed = subprocess.run(["git", "ls-files", "tinychat"], cwd=REPO, capture_output=True, text=True, check=True)
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    return [name for name in listed.stdout.splitlines() if not name.endswith(".py") and name not in packed]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="+", metavar="PYTHON")
    parser.add_argument("--installers", nargs="+", choices=INSTALLERS, default=list(INSTALLERS))
    options = parser.parse_args()
    replies = set()
    failed = False
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        run([sys.executable, "-P", "-m", "venv", str(base / "env")], base)
        tools = base / "env" / SCRIPTS
        run([str(tools / "python"), "-P", "-m", "pip", "install", "--quiet", "uv", "pipx", "build"], base)
        run([str(tools / "python"), "-P", "-m", "build", "--wheel", "--outdir", str(base), str(REPO)], base)
        (wheel,) = base.glob("*.whl")
        if missing := missing_files(wheel):
            raise SystemExit(f"not in the wheel: {', '.join(missing)}")
        print("| Python | installer | |\n|---|---|---|")
        for python in options.pythons:
            version = run([python, "-P", "-c", "import platform; print(platform.python_version())"], base)
            for installer in options.installers:
                folder = base / f"{version}-{installer}"
                folder.mkdir()
                try:
                    found, reply = answers(INSTALLERS[installer](python, wheel, folder, tools), folder)
                    replies.add(reply)
                except RuntimeError as error:
                    found, failed = " ".join(str(error).split()), True
                print(f"| {version} | {installer} | {found} |", flush=True)
    if len(replies) > 1:
        print(f"answers differ: {sorted(replies)}")
    return int(failed or len(replies) != 1)


if __name__ == "__main__":
    sys.exit(main())
