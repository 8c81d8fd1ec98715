"""The one table of settings: type, range, default, scope, other names and help of each.

Command-line flags, keys of config.toml, ``/set``, fields of batch lines and of OpenAI-style bodies, the advice of model
files and keyword arguments of Python follow from it, and it checks their values. A row is a field of one of the
dataclasses at the end, which are the form in which the program passes checked settings on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict

from tinychat.errors import FieldError
from tinychat.setting_kinds import (
    Biases,
    Bytes,
    Choice,
    Integer,
    Kind,
    Number,
    Percent,
    Switch,
    SwitchOrName,
    Texts,
    WordOrTokens,
    shown,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FLAG, CONFIG, SET, LINE = "flag", "config", "set", "line"
"""Where a setting may be given beside Python: a flag, config.toml, ``/set``, a batch line or OpenAI-style body."""

SEEDS = 1 << 64
"""How many seeds there are."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A row of the table."""

    name: str  # in Python, config.toml, ``/set`` and batch lines; the flag has hyphens for underscores
    kind: Kind
    scope: str  # "sampling", "reply", "load", "chat", "tools" or "screen"
    default: Any  # None where the program decides later; None itself is then allowed
    entries: frozenset[str]  # where it may be given beside Python
    help: str  # for the flag
    metavar: str  # the name of the flag's value
    flag: str = ""  # the flag, if it takes no value
    huggingface: str = ""  # its key in ``generation_config.json``
    gguf: str = ""  # its key in GGUF files, behind ``general.sampling.``
    openai: tuple[str, ...] = ()  # its other names in OpenAI-style bodies
    part_of: str = ""  # the setting without which it does nothing: while that has its default, this one is not in use
    example: tuple[str, str] | None = None  # a value in TOML and a remark, for the configuration file to begin with

    def check(self, value: Any) -> Any:
        """Return a value of Python, TOML or JSON in its canonical form; `FieldError` if its type or range is wrong."""
        return None if value is None and self.default is None else self._checked(value, self.kind.noun)

    def read(self, value: Any) -> Any:
        """Return the value of a person's text, or a saved value in its canonical form; errors as for `check`."""
        if self._has_none and (value is None or value == "none"):
            return None
        try:
            parsed = self.kind.parse(value) if isinstance(value, str) else value
        except ValueError as error:
            raise FieldError(self.name, str(error)) from None
        return self._checked(parsed, self.kind.typed, self.kind.meant(value) if isinstance(value, str) else "")

    def write(self, value: Any) -> str:
        """Return the text that a person would type for a value."""
        return "none" if value is None else self.kind.write(value)

    @property
    def _has_none(self) -> bool:
        # What a model was loaded with is a value: there is no "none" to go back to.
        return self.default is None and self.scope in ("sampling", "reply")

    def _checked(self, value: Any, noun: str, meant: str = "") -> Any:
        if not self.kind.has_type(value):
            or_none, advice = " or none" * self._has_none, f": did you mean {meant}?" if meant else ""
            raise FieldError(self.name, f"must be {noun}{or_none}, not {shown(value)}{advice}")
        if refusal := self.kind.refusal(value):
            raise FieldError(self.name, refusal)
        return self.kind.plain(value)


def _row(scope: str, entries: str, default: Any, kind: Kind, help: str = "", metavar: str = "", **others: Any) -> Any:
    setting = Setting(
        name="",
        kind=kind,
        scope=scope,
        default=default,
        entries=frozenset(entries.split()),
        help=help,
        metavar=metavar or kind.metavar,
        **others,
    )
    return field(default=default, metadata={"setting": setting})


_sampling = partial(_row, "sampling", f"{FLAG} {CONFIG} {SET} {LINE}")
_reply: Callable[..., Any] = partial(_row, "reply")
_load: Callable[..., Any] = partial(_row, "load")
_chat: Callable[..., Any] = partial(_row, "chat")
_tools: Callable[..., Any] = partial(_row, "tools")
_screen: Callable[..., Any] = partial(_row, "screen")


class _Checked:
    """Dataclass whose fields are rows of the table: it brings their values into their canonical form."""

    def __post_init__(self: DataclassInstance) -> None:
        for one in fields(self):
            if one.name in SETTINGS:
                # The way for a frozen dataclass to change its own fields.
                object.__setattr__(self, one.name, SETTINGS[one.name].check(getattr(self, one.name)))


# Rows of a table: a line or two each.
# fmt: off
@dataclass(frozen=True, kw_only=True)
class ReplySettings(_Checked):
    """How the next token is chosen, what ends a reply, and what is reported of it."""

    temperature: float = _sampling(0.8, Number(0, 100), "Sampling temperature; 0 always takes the most likely token",
        huggingface="temperature", gguf="temp", example=("0.7", ""))
    top_k: int = _sampling(40, Integer(0, bounds="0 (all tokens) or more"),
        "Sample from this many of the most likely tokens; 0 for all", "TOKENS", huggingface="top_k", gguf="top_k")
    top_p: float = _sampling(0.95, Number(0.01, 1),
        "Sample from the most likely tokens whose probabilities reach this sum", huggingface="top_p", gguf="top_p")
    min_p: float = _sampling(0.05, Number(0, 1), "Drop tokens below this fraction of the highest probability",
        huggingface="min_p", gguf="min_p")
    repeat_penalty: float = _sampling(1.0, Number(0.01, 100), "Penalty for recent tokens; 1 is off",
        huggingface="repetition_penalty", gguf="penalty_repeat", openai=("repetition_penalty",))
    repeat_last_n: int = _sampling(64, Integer(0, bounds="0 (no tokens) or more"),
        "Number of recent tokens for the three penalties", "TOKENS", huggingface="repeat_last_n", gguf="penalty_last_n")
    repeat_in_code: bool = _sampling(True, Switch(), "Whether --repeat-penalty also applies in code blocks and tables",
        part_of="repeat_penalty")
    frequency_penalty: float = _sampling(0.0, Number(-2, 2),
        "Lower a token's logit by this for each time it is among the recent tokens", gguf="penalty_freq",
        part_of="frequency_penalty")
    presence_penalty: float = _sampling(0.0, Number(-2, 2),
        "Lower a token's logit by this if it is among the recent tokens", gguf="penalty_present",
        part_of="presence_penalty")
    dry_multiplier: float = _sampling(0.0, Number(0, 100),
        "Penalty for tokens that continue a repetition (DRY): this times a power of --dry-base; 0 is off",
        part_of="dry_multiplier")
    dry_base: float = _sampling(1.75, Number(1, 100), "Factor by which the DRY penalty grows with each repeated token",
        part_of="dry_multiplier")
    dry_allowed_length: int = _sampling(2, Integer(1), "Length of a repetition that DRY does not penalize", "TOKENS",
        part_of="dry_multiplier")
    dry_penalty_last_n: int = _sampling(64, Integer(0, bounds="0 (no tokens) or more"),
        "Number of recent tokens in which DRY looks for repetitions", "TOKENS", part_of="dry_multiplier")
    dry_sequence_breakers: str | Sequence[str] = _sampling(("\n", ":", '"', "*"), Texts("end every repetition"),
        "Text at which DRY ends every repetition; repeatable", part_of="dry_multiplier")
    top_n_sigma: float = _sampling(0.0, Number(0, 100),
        "Drop tokens whose logit is more than this many standard deviations below the highest; 0 is off",
        part_of="top_n_sigma")
    xtc_probability: float = _sampling(0.0, Number(0, 1),
        "Probability of excluding all likely tokens but the least likely of them (XTC); 0 is off",
        huggingface="xtc_probability", gguf="xtc_probability", part_of="xtc_probability")
    xtc_threshold: float = _sampling(0.1, Number(0, 1),
        "Probability from which XTC counts a token as likely; above 0.5 nothing is excluded",
        huggingface="xtc_threshold", gguf="xtc_threshold", part_of="xtc_probability")
    seed: int | None = _sampling(None, Integer(0, bounds="0 or more"),
        "Seed of the random numbers, for repeatable replies")
    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]] = _reply(LINE, (), Biases(100),
        "Numbers to add to the logits of tokens, by id", part_of="logit_bias")
    max_tokens: int | None = _reply(f"{FLAG} {CONFIG} {SET} {LINE}", None, Integer(1),
        "Maximum length of a reply in tokens", "TOKENS", openai=("max_completion_tokens",), example=("1000", ""))
    stop: str | Sequence[str] = _reply(f"{FLAG} {CONFIG} {SET} {LINE}", (), Texts("end every reply at once"),
        "End a reply at this text; repeatable")
    loop_stop: bool = _reply(f"{FLAG} {CONFIG} {SET} {LINE}", True, Switch(),
        "Whether to end a reply that repeats itself over and over", part_of="loop_stop")
    ignore_eos: bool = _reply("", False, Switch(),
        "Treat the model's own stop tokens as ordinary tokens, and let it repeat itself")
    logprobs: int | None = _reply(FLAG, None, Integer(0, 1000),
        "In JSON, add the natural log-probabilities of each token and of the N most likely alternatives, from the "
        "model's logits before any penalty, temperature or filter",
        "N")
    think_budget: int | None = _reply("", None, Integer(0),
        "Maximum tokens of a think section, which then gets its end marker; ignored where a constraint allows no such "
        "section")


class ReplyKeywords(TypedDict, total=False):
    """The fields of `ReplySettings` as keyword arguments."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    repeat_last_n: int
    repeat_in_code: bool
    frequency_penalty: float
    presence_penalty: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: str | Sequence[str]
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    seed: int | None
    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]]
    max_tokens: int | None
    stop: str | Sequence[str]
    loop_stop: bool
    ignore_eos: bool
    logprobs: int | None
    think_budget: int | None


@dataclass(frozen=True, kw_only=True)
class LoadSettings(_Checked):
    """How a model is loaded: see `tinychat.load`."""

    context: int | None = _load(f"{FLAG} {CONFIG} {SET}", None, Integer(1, 1 << 20, "tokens"), "Context size in tokens",
        example=("8192", ""))
    threads: int | None = _load(f"{FLAG} {CONFIG} {SET}", None, Integer(1, 1024, "threads"),
        "Maximum number of threads; fewer run while other programs use the cores", "N")
    kv: str | None = _load(f"{FLAG} {CONFIG} {SET}", None, Choice("bf16", "f16", "int8", "f32"),
        "Type of the KV cache: bf16 (default), f16 (fine; of narrow models), int8 (small; fast in long contexts), f32")
    cache_memory: int | None = _load(f"{FLAG} {CONFIG}", None, Bytes(1),
        "Maximum memory for the KV cache of all sequences, such as 2G; default: a quarter of the free memory")
    share: int = _load(f"{FLAG} {CONFIG} {SET}", 100, Percent(),
        "Maximum share of the cores' time that all threads together take; the tokens stay the same",
        example=("50", "half of the processor is left to others"))
    draft: bool | str = _load(f"{FLAG} {CONFIG} {SET}", True, SwitchOrName("model"),
        "Speculative decoding with drafts copied from the prompt and the reply, and written by a smaller model of the "
        "same vocabulary or a drafter, if one is named; the tokens stay the same")


@dataclass(frozen=True, kw_only=True)
class ChatSettings(_Checked):
    """How a conversation is held."""

    system: str | None = _chat(f"{FLAG} {CONFIG} {SET}", None, Kind("a text"),
        "System prompt", example=('"You answer in one sentence."', ""))
    think: str | int = _chat(f"{FLAG} {CONFIG} {SET}", "auto", WordOrTokens("on", "off", "auto", zero="off"),
        "Whether a model with a thinking mode thinks before it answers, or for how many tokens at most",
        example=('"off"', '"on", "off", or the most tokens to think for'))
    overflow: str = _chat(f"{FLAG} {CONFIG} {SET}", "drop", Choice("stop", "drop", "shift", "summarise"),
        "When the context is full: stop the reply, drop the oldest turns, shift the cache past them, or summarise "
        "them with the model",
        example=('"drop"', 'when the context is full: "drop", "shift", "summarise" or "stop"'))
    image_detail: str = _chat(f"{FLAG} {CONFIG} {SET}", "high", Choice("high", "low"),
        "Detail in which images are seen; low takes fewer tokens and less time",
        example=('"low"', "images take fewer tokens"))
    cache_disk: int = _chat(f"{FLAG} {CONFIG}", 1 << 30, Bytes(0),
        "Maximum disk space for the KV caches of saved conversations; 0 saves none")
    log: bool = _chat(f"{FLAG} {CONFIG}", True, Switch(),
        "Whether to save one-shots on disk, for `tinychat -c` and `tinychat log`", flag="--log/--no-log")


@dataclass(frozen=True, kw_only=True)
class ToolSettings(_Checked):
    """The tools that the model of a chat may call."""

    tools: str | Sequence[str] = _tools(f"{FLAG} {CONFIG}", (), Texts("name no tools"),
        "Groups of tools that the model may call, with your consent, such as files,shell; repeatable", "NAMES",
        example=('["files"]', "what the model may ask for: docs/tools.md"))
    functions: str | Sequence[str] = _tools(f"{FLAG} {CONFIG}", (), Texts("name no file"),
        "Python file whose functions the model may call, with your consent; repeatable", "FILE")
    mcp: str | Sequence[str] = _tools(FLAG, (), Texts("name no server"),
        "MCP server of the configuration file whose tools the model may call, with your consent; repeatable", "NAME")
    mcp_config: str | None = _tools(f"{FLAG} {CONFIG}", None, Kind("a text"),
        "File of more MCP servers, in the usual form of mcp.json; without --mcp all of them are used", "FILE")
    allow_tool: str | Sequence[str] = _tools(f"{FLAG} {CONFIG}", (), Texts("name no tool"),
        "Tool that runs without your consent; without a terminal no others run; repeatable", "NAME")
    max_tool_rounds: int = _tools(f"{FLAG} {CONFIG}", 10, Integer(1, 1000),
        "Maximum rounds of calls that answer one message", "N")
    tools_budget: int | None = _tools(f"{FLAG} {CONFIG}", None, Integer(1),
        "Maximum tokens for the text of all tools; those of --allow-tool come first, and what does not fit is off",
        "TOKENS")


@dataclass(frozen=True, kw_only=True)
class ScreenSettings(_Checked):
    """Lines shown of a reply."""

    plain: bool = _screen(f"{FLAG} {CONFIG}", False, Switch(),
        "Show replies as plain text instead of rendered Markdown", flag="--plain")
    stats: bool | None = _screen(f"{FLAG} {CONFIG} {SET}", None, Switch(),
        "Show token counts and rates below each reply; default: on a terminal", flag="--verbose/--quiet",
        example=("false", "no line of rates below each reply"))

# fmt: on


SETTINGS: dict[str, Setting] = {
    one.name: replace(one.metadata["setting"], name=one.name)
    for group in (ReplySettings, LoadSettings, ChatSettings, ToolSettings, ScreenSettings)
    for one in fields(group)
}
"""The table, by name."""


def names(scope: str = "", entry: str = "") -> tuple[str, ...]:
    """Return the names of the settings of a scope, or of an entry, in the table's order."""
    rows = SETTINGS.values()
    return tuple(row.name for row in rows if scope in ("", row.scope) and (not entry or entry in row.entries))


def in_use(name: str, values: DataclassInstance) -> bool:
    """Return whether a setting of `values` has any effect beside the others."""
    leading = SETTINGS[name].part_of
    return not leading or getattr(values, leading) != SETTINGS[leading].default


def _attributes(group: type[DataclassInstance]) -> str:
    rows = [(one.type, SETTINGS[one.name]) for one in fields(group)]
    return "\n".join(f"{row.name} : {kind}\n    {row.help}. Default: {row.default!r}." for kind, row in rows)


for _group in (ReplySettings, LoadSettings, ChatSettings, ToolSettings, ScreenSettings):
    _group.__doc__ = f"{_group.__doc__}\n\nAttributes\n----------\n{_attributes(_group)}\n"
