"""Every recording by the folder of its golden files."""

from pathlib import Path

from front.bad_values import record_errors
from front.conversations import record_conversations
from front.replies import record_replies
from front.sessions import record_sessions
from front.texts import record_configuration, record_helps

GOLDENS = Path(__file__).resolve().parents[1] / "goldens" / "front"

# Each takes an empty folder to work in, and returns the texts of the golden files by their names.
RECORDINGS = {
    "help": record_helps,
    "config": record_configuration,
    "errors": record_errors,
    "replies": record_replies,
    "conversations": record_conversations,
    "sessions": record_sessions,
}


def golden_of(name):
    """Return the texts of the golden files of a recording by their names."""
    return {path.name: path.read_text(encoding="utf-8") for path in sorted((GOLDENS / name).glob("*"))}
