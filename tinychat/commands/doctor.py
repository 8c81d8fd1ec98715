"""tinychat doctor: what this machine and a model will do, and what is wrong."""

from __future__ import annotations

import click

from tinychat.chat.safe_text import safe_text
from tinychat.errors import TinychatError


@click.command()
@click.argument("model", required=False)
def doctor(model: str | None) -> None:
    """Examine this machine, and MODEL if given.

    Shows processor, memory, versions, the cache of compiled kernels and the store; for a model its sizes and the
    memory it needs. Exit code 1 if something is wrong.
    """
    # Imported here: `tinychat --help` shall not wait for it.
    from tinychat.checkpoint.store import resolve
    from tinychat.doctor import Findings, examine_machine, examine_model

    findings = Findings()
    examine_machine(findings)
    if model is not None:
        reference = resolve(model)
        findings.check(lambda: examine_model(findings, reference))
    width = max(len(name) for name, _ in findings.lines)
    for name, value in findings.lines:
        click.echo(safe_text(f"{name:<{width}}  {value}"))
    for problem in findings.problems:
        click.echo(safe_text(f"{'problem':<{width}}  {problem}"))
    if findings.problems:
        raise TinychatError(f"{len(findings.problems)} problem(s) found: see above")
