"""The model of a tinychat server, for a conversation: its tokens are counted there, and its replies come from there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, NoReturn
from urllib.parse import quote

from tinychat.client.api import Api, sendable
from tinychat.client.remote_completion import RemoteCalls, RemoteCompletion
from tinychat.errors import PromptTooLongError, ServerError, SettingError
from tinychat.generate.precedence import LOOP_DEFAULTS
from tinychat.generate.prompt import Prompt
from tinychat.generate.request import SAMPLING_FIELDS, Request
from tinychat.generate.run import MakeRoom
from tinychat.generate.stream import PrefillProgress
from tinychat.settings import SETTINGS
from tinychat.tools.definitions import ToolChoice
from tinychat.tools.formats.call_format import CallFormat
from tinychat.tools.formats.form_fields import form_of_fields

_COUNTED_TEXTS = 256
_QUESTION = [{"role": "user", "content": "Hello"}]


class RemoteTemplate(NamedTuple):
    """The known properties of a chat template that a server renders."""

    is_fallback: bool
    thinking_switch: str = ""


class RemoteToolTemplate(NamedTuple):
    """The form of a model's calls, and the control tokens that are its marks."""

    form: CallFormat
    markers: frozenset[int]


class RemoteTokenizer:
    """The tokenizer of a server's model."""

    special_ids: frozenset[int] = frozenset()

    def __init__(self, ask: Callable[..., Any]) -> None:
        self._ask = ask
        self._encoded = lru_cache(_COUNTED_TEXTS)(self._encode)

    def encode(self, text: str, *, add_bos: bool = False, is_rendered: bool = False) -> list[int]:
        """Return the ids of a text, in which the names of control tokens are these only if it `is_rendered`."""
        return [*self._encoded(text, add_bos, is_rendered)]

    def encode_rendered(self, text: str) -> list[int]:
        """Return the ids of a text that a chat template wrote."""
        return self.encode(text, is_rendered=True)

    def encode_reply(self, text: str) -> list[int]:
        """Return the ids of a reply's text."""
        return self.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, control tokens by their names."""
        return str(self._ask("/detokenize", "content", tokens=[*ids]))

    def token_bytes(self, token_id: int) -> bytes:
        """Return the text of a token in UTF-8; a part of a character is U+FFFD."""
        return self.decode([token_id]).encode()

    def _encode(self, text: str, add_bos: bool, is_rendered: bool) -> tuple[int, ...]:
        return (*self._ask("/tokenize", "tokens", content=text, add_special=add_bos, parse_special=is_rendered),)


class RemoteChatModel:
    """A model of a tinychat server, with the part of `tinychat.generate.model.Model` that conversations use.

    By default `name` is the first model that the server has. `ServerError` if the server does not answer, has no such
    model, or is another program's.
    """

    runs_here = False

    def __init__(self, api: Api, name: str | None = None) -> None:
        self._api = api
        # Of no model yet: the server takes its first one.
        self.name = name or ""
        try:
            props = api.get("/props" + (f"?model={quote(name, safe='')}" if name else ""))
        except ServerError:
            # Ours refuses keys and names that it does not know; others have no such address.
            if _is_ours(api):
                raise
            props = None
        try:
            is_ours = str(props["build_info"]).startswith("tinychat")
            params = props["default_generation_settings"]["params"]
            self.context_size = int(params["n_ctx"])
            self.name = str(props["model_alias"])
            self.template = RemoteTemplate(is_fallback=not props["chat_template"])
            self.sees_images = bool(props["modalities"]["vision"])
            listed = {model["id"]: model["meta"] or {} for model in api.get("/models")["data"]}
            self.trained_length = int(listed.get(self.name, {}).get("n_ctx_train", self.context_size))
        except (KeyError, TypeError, ValueError, AttributeError):
            is_ours = False
        if not is_ours:
            raise ServerError(f"{api.url} is no server of tinychat: chat needs one, complete --server takes any")
        self.names = [str(one) for one in listed]
        self.own_defaults: Mapping[str, Any] = {
            setting: params[setting]
            for setting in SAMPLING_FIELDS
            if setting != "seed" and setting in params and params[setting] != _default(setting)
        }
        self.tokenizer = RemoteTokenizer(self._ask)
        self._opens = lru_cache(3)(self._opens_thinking)

    @property
    def sequence(self) -> NoReturn:
        """The cache, which is the server's: always a `SettingError`."""
        raise SettingError(f"{self._api.url} runs {self.name}: its context, cache and threads are set there")

    @cached_property
    def tool_template(self) -> RemoteToolTemplate:
        """The form in which the model writes calls of tools."""
        found = self._calls(())
        try:
            return RemoteToolTemplate(form_of_fields(found["form"]), frozenset(map(int, found["markers"])))
        except (KeyError, TypeError, ValueError):
            raise self._is_odd() from None

    def call_constraint(self, choice: ToolChoice) -> RemoteCalls:
        """Return the constraint by which the server holds calls to their schemas; `SettingError` if it cannot."""
        tools = tuple(tool.as_dict() for tool in choice.tools)
        if problem := self._calls(tools).get("problem"):
            raise SettingError(str(problem))
        return RemoteCalls(tools)

    def _calls(self, tools: Sequence[Mapping[str, object]]) -> dict[str, Any]:
        """Return the tool calls that the server reports."""
        found = self._ask("/apply-template", "calls", messages=_QUESTION, tools=[*tools], return_calls=True)
        if not isinstance(found, dict):
            raise self._is_odd()
        return found

    def resize(self, context_size: int) -> None:
        """Refuse another context; errors are those of `sequence`."""
        _ = self.sequence

    def next_logits(self, ids: Sequence[int]) -> NoReturn:
        """Refuse, by a `SettingError`: logits stay at the server."""
        raise SettingError(f"{self._api.url} runs {self.name}: its logits cannot be had here")

    def encode(self, text: str, add_bos: bool = True) -> list[int]:
        """Return the token ids of plain text."""
        return self.tokenizer.encode(text, add_bos=add_bos)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""
        return self.tokenizer.decode(ids)

    def render(self, messages: Sequence[Mapping[str, object]]) -> str:
        """Return the text of the chat template for messages."""
        return str(self._ask("/apply-template", "prompt", messages=sendable(messages)))

    def chat_prompt(
        self,
        messages: Sequence[Mapping[str, object]],
        system: str | None = None,
        thinking: bool | None = None,
        tools: Sequence[Mapping[str, object]] = (),
    ) -> Prompt:
        """Return the prompt that asks for the reply to a conversation, the system prompt before it."""
        standing: list[Mapping[str, object]] = [{"role": "system", "content": system}] if system else []
        body: dict[str, Any] = {"messages": sendable([*standing, *messages]), "return_tokens": True}
        if tools:
            body["tools"] = [*tools]
        shown = self.tool_template.markers if tools else frozenset[int]()
        if thinking is not None:
            body["thinking"] = thinking
        found = self._ask("/apply-template", None, **body)
        try:
            ids, stop = [int(one) for one in found["tokens"]], tuple(map(str, found["stop"]))
            return Prompt(ids, False, stop, bool(found["opens_thinking"]), shown=shown)
        except (KeyError, TypeError, ValueError):
            raise self._is_odd() from None

    def opens_thinking(self, thinking: bool | None) -> bool:
        """Return whether the reply to a `chat_prompt` begins inside its think section."""
        return self._opens(thinking)

    def _opens_thinking(self, thinking: bool | None) -> bool:
        return self.chat_prompt(_QUESTION, None, thinking).opens_thinking

    def reply(
        self,
        prompt: Prompt,
        request: Request,
        *,
        on_prefill: PrefillProgress | None = None,
        cancelled: Callable[[], bool] | None = None,
        make_room: MakeRoom | None = None,
    ) -> RemoteCompletion:
        """Return the reply to a prompt, which begins when it is read.

        `PromptTooLongError` if the prompt is longer than the context.
        """
        if len(prompt.ids) > self.context_size:
            raise PromptTooLongError(len(prompt.ids), self.context_size, self.trained_length)
        return RemoteCompletion(self._api, self.name, prompt, request, on_prefill, cancelled, make_room)

    def _ask(self, path: str, field: str | None, **body: Any) -> Any:
        """Return a field of an answer, or all of it."""
        with self._api.send("POST", path, {"model": self.name, **body}) as answer:
            found = answer.json()
        if not isinstance(found, dict) or (field is not None and field not in found):
            raise self._is_odd()
        return found if field is None else found[field]

    def _is_odd(self) -> ServerError:
        return ServerError(f"{self._api.url} answers in another form: is it an older tinychat?")


def _is_ours(api: Api) -> bool:
    """Return whether a server's models are served by tinychat."""
    try:
        return any(model["owned_by"] == "tinychat" for model in api.get("/models")["data"])
    except (KeyError, TypeError):
        return False


def _default(setting: str) -> object:
    """Return the value that a setting has where nobody says anything, as JSON."""
    value = LOOP_DEFAULTS.get(setting, SETTINGS[setting].default)
    return [*value] if isinstance(value, tuple) else value
