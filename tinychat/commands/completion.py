"""tinychat completion: what makes a shell complete its commands."""

from __future__ import annotations

import click

# Set by the code that a shell runs.
VARIABLE = "_TINYCHAT_COMPLETE"


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
