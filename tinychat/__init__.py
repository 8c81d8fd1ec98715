"""Chat with a language model on your CPU: pure Python, int4, compiled by Numba for this very processor.

import tinychat

tinychat.convert("path/of/checkpoint", "path/of/model", quant="int4")
model = tinychat.load("path/of/model")
for delta in model.stream("Once upon a time"):
    print(delta.text, end="")
print()
print(tinychat.Chat(model).say("Hello!"))
"""

from __future__ import annotations

from tinychat import errors
from tinychat.errors import TinychatError

# Not from typing: its import takes most of the time in which the program has no handler for Ctrl-C yet.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from tinychat.api import convert, load
    from tinychat.conversation.conversation import Chat
    from tinychat.conversation.messages import Message
    from tinychat.generate.model import Model
    from tinychat.generate.reply import Delta, Reply
    from tinychat.generate.request import Request
    from tinychat.rows.answerer import RowAnswerer

__version__ = "0.1.0"
__all__ = [
    "Chat",
    "Delta",
    "Message",
    "Model",
    "Reply",
    "Request",
    "RowAnswerer",
    "TinychatError",
    "__version__",
    "convert",
    "errors",
    "load",
]

_HOMES = {
    "Chat": "tinychat.conversation.conversation",
    "Message": "tinychat.conversation.messages",
    "Model": "tinychat.generate.model",
    "Delta": "tinychat.generate.reply",
    "Reply": "tinychat.generate.reply",
    "Request": "tinychat.generate.request",
    "RowAnswerer": "tinychat.rows.answerer",
    "convert": "tinychat.api",
    "load": "tinychat.api",
}
# Former names, for one release.
_RENAMED = {"Piece": "Delta"}


# Hidden from type checkers, which would take every name for one of the package.
if not TYPE_CHECKING:

    def __getattr__(name):
        """Import a public name when it is first used: `import tinychat` stays light."""
        named = _RENAMED.get(name, name)
        if named not in _HOMES:
            raise AttributeError(f"module 'tinychat' has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(_HOMES[named]), named)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
