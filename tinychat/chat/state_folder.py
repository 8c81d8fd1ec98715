"""Where the chat keeps what it remembers between two runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_VARIABLES = (("TINYCHAT_HOME", ""), ("XDG_STATE_HOME", "tinychat"), ("LOCALAPPDATA", "tinychat"))


def state_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of history and conversations: $TINYCHAT_HOME, else the user's folder for such data."""
    for variable, below in _VARIABLES:
        if base := environment.get(variable):
            return Path(os.path.expanduser(base), below)
    return Path(os.path.expanduser("~/.local/state/tinychat"))
