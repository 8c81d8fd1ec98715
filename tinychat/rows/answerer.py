"""Answers to the rows of tables, for programs that spread rows over processes and machines."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from functools import cache
from itertools import chain, islice
from threading import Lock
from typing import TYPE_CHECKING, Any

from tinychat.errors import FieldError, TinychatError
from tinychat.generate.precedence import Preferences
from tinychat.generate.prompt import Prompt
from tinychat.generate.request import Request, as_request
from tinychat.rows.columns import RowColumns
from tinychat.rows.own_cores import bind_to_own_cores
from tinychat.rows.prompts import AHEAD, ROW_ERRORS, TOGETHER, RowError, RowPrompts, RowRequest, answered
from tinychat.rows.result_columns import COLUMNS
from tinychat.settings import LoadSettings, names

if TYPE_CHECKING:
    from tinychat.generate.grammar import Grammar
    from tinychat.generate.model import Model
    from tinychat.generate.reply import Reply

_OTHER_SETTINGS = (*names("load"), "system", "think")
_LOADING = Lock()


class RowAnswerer:
    """Answers rows with a model that each process loads once, with the first rows.

    It holds settings only, so that Ray, Spark and Dask can send it to other processes. Any number of threads may use
    it. A row has the same answer in any company, in any process, and from `tinychat batch` without a configuration
    file: with a seed, or with temperature 0.

    Parameters
    ----------
    model : str or path, optional
        As for `tinychat.load`; the default model when omitted.
    prompt_column : str
        The column of the prompt: a text, or messages with `role` and `content`.
    template : str, optional
        The prompt instead, with names of columns in braces: "Summarise: {text}".
    setting_columns : sequence of str
        Columns with settings of their row, such as "max_tokens"; a row without a value has the common one.
    schema : str, optional
        JSON schema of the replies.
    as_chat : bool, optional
        Whether a text becomes a message; by default if the model has a chat template, or there is a system prompt.
    parallel : int, optional
        Rows to answer at once, by default a number found by measurement.
    cores : int, optional
        Cores to bind this process to, which no other process has that is given this; `threads` is then as many.
    **settings
        Settings of sampling, of the length of replies and of loading, `system` and `think`, by their names in
        ``config.toml``. What is not given is what the model's makers advise.

    Raises
    ------
    SettingError
        If an argument is out of range.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        prompt_column: str = "prompt",
        template: str | None = None,
        setting_columns: Sequence[str] = (),
        schema: str | None = None,
        as_chat: bool | None = None,
        parallel: int | None = None,
        cores: int | None = None,
        **settings: Any,
    ) -> None:
        as_request(**{name: value for name, value in settings.items() if name not in _OTHER_SETTINGS})
        for name, count in (("parallel", parallel), ("cores", cores)):
            if count is not None and count < 1:
                raise FieldError(name, f"must be 1 or more, not {count}")
        self._model = None if model is None else os.fspath(model)
        self._columns = RowColumns(prompt_column, template, tuple(setting_columns))
        self._schema, self._as_chat = schema, as_chat
        self._parallel, self._cores = parallel, cores
        self._preferences = Preferences(flags=settings)
        given = self._preferences.resolve()
        self._loading, self._thinking, self._system = given.loading, given.thinking, given.chat.system
        if cores is not None and self._loading.threads is None:
            self._loading = replace(self._loading, threads=cores)

    @property
    def model(self) -> Model:
        """The model of this process, loaded now if no row was answered before; errors are those of `tinychat.load`."""
        with _LOADING:
            if self._cores is not None:
                bind_to_own_cores(self._cores)
            return _loaded(self._model, self._loading)

    @property
    def request(self) -> Request:
        """The settings of all replies."""
        model, is_text = self.model, self._schema is None
        found = self._preferences.resolve(advice=model.own_defaults, is_text=is_text).request
        constraint = None if self._schema is None else model.constraint(_grammar(self._schema))
        return replace(found, think_budget=self._thinking.budget, constraint=constraint)

    def answer(self, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return rows with their answers, several written at once: each row has the `COLUMNS` more.

        A row that cannot be answered has an `error` and no `reply`.

        Raises
        ------
        TinychatError
            If the model cannot be loaded or run, a setting is out of range, or a row has one of the columns already.
        """
        asked = [dict(row) for row in rows]
        if taken := sorted({name for row in asked for name in COLUMNS if name in row}):
            raise FieldError("rows", f"have a column {taken[0]!r} already: rename it")
        if not asked:
            return []
        model, request = self.model, self.request
        groups = self._requests(model, request, asked)
        with closing(answered(model, groups, self._parallel, AHEAD // TOGETHER)) as replies:
            for number, got in chain.from_iterable(replies):
                asked[number] |= _columns(got)
        return asked

    def _requests(
        self, model: Model, request: Request, rows: Iterable[Mapping[str, Any]]
    ) -> Iterator[list[tuple[Prompt, Request] | TinychatError]]:
        """Yield the prompt and request of each row, or its error, of some rows together."""
        prompts, coming = RowPrompts(model, self._system, self._as_chat, self._thinking.wanted), iter(rows)
        while group := [self._asked(request, row) for row in islice(coming, TOGETHER)]:
            yield prompts.requests(group)

    def _asked(self, request: Request, row: Mapping[str, Any]) -> RowRequest | RowError:
        """Return the text or messages of a row and its request, or its error."""
        try:
            asked, settings = self._columns.prompt_of(row), self._columns.settings_of(row)
            return asked, replace(request, **settings) if settings else request
        except ROW_ERRORS as error:
            return error


@cache
def _loaded(model: str | None, loading: LoadSettings) -> Model:
    # Imported here: it needs the compiler.
    from tinychat.api import load
    from tinychat.store.default_model import default_model

    return load(default_model() if model is None else model, **asdict(loading))


@cache
def _grammar(schema: str) -> Grammar:
    # Imported here: it imports numpy.
    from tinychat.generate.grammar import Grammar

    return Grammar.from_schema(schema)


def _columns(result: Reply | TinychatError) -> dict[str, Any]:
    if isinstance(result, TinychatError):
        return dict(zip(COLUMNS, (None, None, 0, 0, str(result))))
    summary = result.summary
    return dict(zip(COLUMNS, (result.text, summary.finish_reason, summary.prompt_tokens, summary.new_tokens, None)))
