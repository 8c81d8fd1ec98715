"""The texts that the command line writes of itself: every --help, the configuration file that it begins."""

import re

from front.program import Program

_COMMENTED_OUT = re.compile(r"^# (?=[a-z_]+ = |\[)", re.MULTILINE)

# Each origin of settings leaves one more to those below it; of the last, the model has advice.
_LAYERS = """\
top_p = 0.91
min_p = 0.01
top_k = 11
seed = 1
system = "General."
overflow = "shift"
[roles.reviewer]
min_p = 0.02
top_k = 12
seed = 2
system = "Of the role."
[models.demo]
top_k = 13
seed = 3
max_tokens = 30
"""


def record_helps(folder):
    """Return a file for the program and for each command that its own help lists."""
    program = Program(folder)
    top = program.succeed("--help").out
    names = re.findall(r"^  ([a-z]+) ", top.partition("\nCommands:\n")[2], re.MULTILINE)
    assert "chat" in names
    return {"tinychat.txt": top} | {f"{name}.txt": program.succeed(name, "--help").out for name in names}


def record_configuration(folder):
    """Return the file that `config --init` writes, `config` of it with no line left as a comment, and what wins."""
    program = Program(folder)
    program.succeed("config", "--init")
    starter = program.configuration.read_text(encoding="utf-8")
    program.configuration.write_text(_COMMENTED_OUT.sub("", starter), encoding="utf-8")
    shown = program.succeed("config").out
    program.configuration.write_text(_LAYERS, encoding="utf-8")
    typed = "/show\n/set seed 5\n/set stop end\n/show\n"
    flags = "-r reviewer --seed 4 --context 512 --threads 1".split()
    layered = program.succeed("chat", "demo", *flags, stdin=typed).err
    return {"starter.toml": starter, "shown.txt": shown, "precedence.txt": layered}
