"""tinychat doctor: facts and problems of this machine and of a model."""

from __future__ import annotations

import click

from tinychat.commands.options import model_argument, setting_flags
from tinychat.errors import TinychatError
from tinychat.terminal.safe_text import safe_text


@click.command()
@model_argument()
@setting_flags("context", "kv", context="Context size to assume", kv="Number format of the KV cache to assume")
def doctor(model: str | None, context: int | None, kv: str | None) -> None:
    """Examine this machine, and MODEL if given.

    Shows processor, memory, versions, the cache of compiled kernels and the store; for a model its sizes and the
    memory it needs, with --context and --kv for a KV cache other than the default. Exit code 1 if there is a problem.
    """
    if model is None and (context is not None or kv is not None):
        raise click.UsageError("--context and --kv need a MODEL: name one, such as demo")
    from tinychat.bench.doctor import Findings, examine_machine, examine_model
    from tinychat.store.names import find

    findings = Findings()
    examine_machine(findings)
    if model is None:
        findings.add("model", "none; `tinychat doctor demo` examines the bundled one")
    else:
        reference = find(model)
        findings.check(lambda: examine_model(findings, reference, context, kv))
    width = max(len(name) for name, _ in findings.lines)
    for name, value in findings.lines:
        click.echo(safe_text(f"{name:<{width}}  {value}"))
    for problem in findings.problems:
        click.echo(safe_text(f"{'problem':<{width}}  {problem}"))
    if findings.problems:
        raise TinychatError(f"{len(findings.problems)} problem(s) found: see above")
