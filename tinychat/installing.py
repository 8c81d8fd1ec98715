"""The command that installs what an extra part of the program needs."""

import shlex
import sys
from contextlib import suppress
from pathlib import Path


def install_command(package: str) -> str:
    """Return the command that installs a package for this very Python, wherever it is typed."""
    pip = Path(sys.executable).with_name("pip")
    with suppress(ValueError, OSError):
        pip = pip.relative_to(Path.cwd())
    # Not python -m pip: that would import modules of the working folder.
    begin = shlex.quote(str(pip)) if pip.is_file() else f"{shlex.quote(sys.executable)} -P -m pip"
    return f"{begin} install {package}"
