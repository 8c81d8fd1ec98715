"""The texts that the command line writes of itself: every --help, the configuration file that it begins."""

import re

from front.program import Program

_COMMENTED_OUT = re.compile(r"^# (?=[a-z_]+ = |\[)", re.MULTILINE)


def record_helps(folder):
    """Return a file for the program and for each command that its own help lists."""
    program = Program(folder)
    top = program.succeed("--help").out
    names = re.findall(r"^  ([a-z]+) ", top.partition("\nCommands:\n")[2], re.MULTILINE)
    assert "chat" in names
    return {"tinychat.txt": top} | {f"{name}.txt": program.succeed(name, "--help").out for name in names}


def record_configuration(folder):
    """Return the file that `config --init` writes, and what `config` shows of it with no line left as a comment."""
    program = Program(folder)
    program.succeed("config", "--init")
    starter = program.configuration.read_text(encoding="utf-8")
    program.configuration.write_text(_COMMENTED_OUT.sub("", starter), encoding="utf-8")
    return {"starter.toml": starter, "shown.txt": program.succeed("config").out}
