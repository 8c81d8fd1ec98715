"""The errors that tinychat raises on purpose.

The library raises; only the command line turns them into text. Each message is one line that names the fault, the file
or value, and the remedy. A field is called by its name in Python; the command line says ``--top-k`` for ``top_k``.
"""


class TinychatError(Exception):
    """Base class: one line for the user."""


class CheckpointError(TinychatError):
    """A file of a Hugging Face checkpoint is missing, damaged or contradicts another."""


class UnsupportedModelError(TinychatError):
    """The architecture, or one of its settings, is not implemented."""


class ConversionError(TinychatError):
    """A checkpoint cannot be converted: bad values, or a target that cannot be written."""


class ModelFolderError(TinychatError):
    """A converted model folder is missing, damaged, or of a newer format."""


class HubError(TinychatError):
    """The hub cannot be reached, or has no such repository."""


class StoreError(TinychatError):
    """The local store has no such model, or cannot be written."""


class TextError(TinychatError):
    """A text file, a tokenizer or a chat template is missing, damaged, or failed."""


class ConfigurationError(TinychatError):
    """The configuration file cannot be read, or holds a key or value that means nothing."""


class SessionError(TinychatError):
    """A saved conversation is missing or damaged, or its file or cache cannot be written."""


class ContextError(TinychatError):
    """The tokens do not fit into the context."""


class PromptTooLongError(ContextError):
    """A prompt does not fit into the context.

    Attributes
    ----------
    tokens, context_size : int
        Tokens of the prompt, and positions of the context.
    can_grow : bool
        Whether the model was trained on contexts that would hold it.
    """

    def __init__(self, tokens: int, context_size: int, trained_length: int) -> None:
        self.tokens: int = tokens
        self.context_size: int = context_size
        self.can_grow: bool = tokens < trained_length
        advice = "shorten it, or use a larger context"
        if not self.can_grow:
            advice = f"shorten it (the model was trained on {trained_length} tokens at most)"
        super().__init__(f"the prompt has {tokens} tokens but the context holds {context_size}: {advice}")


class CacheFullError(ContextError):
    """The memory of all sequences' keys and values is full."""


class SettingError(TinychatError):
    """An argument or environment variable is out of range."""


class FieldError(SettingError):
    """The value of one field is out of range.

    Attributes
    ----------
    field : str
        The field's name in Python, with which the message begins.
    problem : str
        The rest of the message: the range of its value.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field} {problem}")
        self.field = field
        self.problem = problem
