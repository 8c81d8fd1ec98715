"""A progress bar on stderr that appears once there is progress to show."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from tinychat.terminal.safe_text import one_safe_line

Progress = Callable[[int, int | None], None]
"""Called with (done, total) of any unit; None where the total is not known."""


@contextmanager
def progress_bar(title: str, note: Callable[[], str] | None = None) -> Iterator[Progress]:
    """Yield a callback that shows `title`, a bar, and the text that `note` returns.

    The first call draws it, and imports what that needs.

    If stderr is not a terminal, the title is written once, as a line.
    """
    title = one_safe_line(title)
    with ExitStack() as stack:
        show: Progress | None = None

        def report(done: int, total: int | None) -> None:
            nonlocal show
            if show is None:
                show = _rich_bar(title, note or str, stack) if sys.stderr.isatty() else _one_line(title)
            show(done, total)

        yield report


def _one_line(title: str) -> Progress:
    print(title, file=sys.stderr, flush=True)
    return lambda _done, _total: None


def _rich_bar(title: str, note: Callable[[], str], stack: ExitStack) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    # File names in a title may look like markup.
    texts = [TextColumn(f"{{task.{field}}}", markup=False) for field in ("description", "fields[note]")]
    columns = (texts[0], BarColumn(), TaskProgressColumn(), TimeRemainingColumn(), texts[1])
    bar = stack.enter_context(Progress(*columns, console=Console(stderr=True), transient=True))
    task = bar.add_task(title, note="")
    return lambda done, total: bar.update(task, completed=done, total=total, note=note())
