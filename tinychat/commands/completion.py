"""tinychat completion: what makes a shell complete its commands."""

from __future__ import annotations

import click

from tinychat.commands.default_command import completed_command

# Set by the code that a shell runs.
VARIABLE = "_TINYCHAT_COMPLETE"


def answer_shell(program: click.Group, instruction: str) -> None:
    """Print what a shell asks for, such as "bash_complete": what may stand for a word of its command line.

    Where no command is named, that is a command, or what the one takes that is meant.
    """
    # Imported here: only the completion of a shell needs it.
    from click.shell_completion import CompletionItem, add_completion_class, get_completion_class, shell_complete

    usual = get_completion_class(instruction.partition("_")[0])
    if usual is None:
        raise click.UsageError(f"${VARIABLE} is {instruction!r}: `tinychat completion` prints what sets it")

    @add_completion_class
    class Words(usual):  # type: ignore[misc, valid-type]
        def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
            meant = [completed_command(args, program.commands)] if args else [[], ["chat"]]
            found = [item for words in meant for item in super(Words, self).get_completions(words, incomplete)]
            return [*{item.value: item for item in found}.values()]

    shell_complete(program, {}, "tinychat", VARIABLE, instruction)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print code that makes a shell complete commands, options and the names of models.

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
