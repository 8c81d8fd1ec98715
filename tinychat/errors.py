"""The errors that tinychat raises on purpose.

    TinychatError
    |- ModelError               a model cannot be found, read or converted
    |  |- CheckpointError       a file of the checkpoint is missing, damaged or contradicts another
    |  |- UnsupportedModelError the architecture or one of its settings is not implemented
    |  |- ConversionError       the conversion cannot go on: values, target folder
    |  |- ModelFolderError      a converted model folder is missing, damaged or too new
    |  |- HubError              the hub cannot be reached or does not have the repository
    |  `- StoreError            the local store has no such model, or cannot be written
    |- TextError                a text, a tokenizer or a chat template cannot be used
    |- ConfigurationError       the configuration file is not as it should be
    |- SessionError             a saved conversation is missing or damaged, or its file or cache cannot be written
    |- ContextError             the tokens do not fit into the context
    |  |- PromptTooLongError    the prompt alone has more of them than the context
    |  `- CacheFullError        the memory of all sequences' keys and values is full
    |- ToolError                a tool cannot be offered, or a call of it cannot be run
    |- ServerError              a server cannot be reached, refuses a request, or breaks off
    |- McpError                 an MCP server cannot be started, breaks off, or breaks a limit or the protocol
    |  `- McpRefusedError       it answers a request with an error
    `- SettingError             an argument or environment variable is out of range
       |- FieldError            the value of one named field is
       `- DrafterError          a drafter is used as a model

The library raises; only the command line turns an error into text. Each message is one line
that says what is wrong, which file or value it is about, and what to do. A field is called by the name
that it has in Python; the command line says ``--top-k`` where the error says ``top_k``.
"""

from pathlib import Path


class TinychatError(Exception):
    """Base class: one line for the user."""


class ModelError(TinychatError):
    """A model cannot be found, read or converted."""


class CheckpointError(ModelError):
    """A file of a Hugging Face checkpoint is missing, damaged or contradicts another."""


class UnsupportedModelError(ModelError):
    """The architecture, or one of its settings, is not implemented."""


class ConversionError(ModelError):
    """A checkpoint cannot be converted: bad values, or a target that cannot be written."""


class ModelFolderError(ModelError):
    """A converted model folder is missing, damaged, or of a newer format."""


class HubError(ModelError):
    """The hub cannot be reached, or has no such repository."""


class StoreError(ModelError):
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


class ToolError(TinychatError):
    """A tool cannot be offered, or a call of it cannot be run: one line that the model may read, too."""


class ServerError(TinychatError):
    """A server of models cannot be reached, refuses a request, or breaks off."""


class McpError(TinychatError):
    """A server of tools (MCP) cannot be started, breaks off, or breaks a limit or the protocol."""


class McpRefusedError(McpError):
    """A server of tools answers a request with an error.

    Attributes
    ----------
    code : int
        JSON-RPC's number of the error.
    data : object
        What the server adds to it, as JSON has it; None if nothing.
    """

    def __init__(self, message: str, code: int, data: object = None) -> None:
        super().__init__(message)
        self.code, self.data = code, data


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


class DrafterError(SettingError):
    """A drafter is used as a model.

    Attributes
    ----------
    folder : Path
        Its model folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder: Path = folder
        super().__init__(
            f"{folder.name} is a drafter, which only writes drafts for a larger model: choose that model, and this as"
            " its draft"
        )
