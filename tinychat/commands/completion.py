"""tinychat completion: code for shells, and the answers to their requests."""

from __future__ import annotations

import click

from tinychat.commands.default_command import completed_command

# The code for shells sets it.
VARIABLE = "_TINYCHAT_COMPLETE"


def answer_shell(program: click.Group, instruction: str) -> None:
    """Print the candidates for a word of a shell's command line; `instruction` is such as "bash_complete"."""
    # Imported here: only shell completion needs it.
    from click.shell_completion import CompletionItem, add_completion_class, get_completion_class, shell_complete

    base = get_completion_class(instruction.partition("_")[0])
    if base is None:
        raise click.UsageError(f"invalid ${VARIABLE} {instruction!r}: use the code of `tinychat completion`")

    @add_completion_class
    class DefaultCommandCompletion(base):  # type: ignore[misc, valid-type]
        def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
            """Return the candidates, also of the default command if none is named."""
            lines = [completed_command(args, program.commands)] if args else [[], ["chat"]]
            complete = super().get_completions
            return [*{item.value: item for line in lines for item in complete(line, incomplete)}.values()]

    shell_complete(program, {}, "tinychat", VARIABLE, instruction)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print shell code that completes commands, flags and the names of models.

    \b
    eval "$(tinychat completion bash)"          in ~/.bashrc
    eval "$(tinychat completion zsh)"           in ~/.zshrc
    tinychat completion fish | source           in ~/.config/fish/config.fish
    """  # noqa: D301
    # Imported here: only this command needs it.
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    print(kind(context.find_root().command, {}, "tinychat", VARIABLE).source())
