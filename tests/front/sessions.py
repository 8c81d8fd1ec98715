"""Saved conversations of today's format: made once, and what later versions of the chat show of them at each step.

The session files are committed and never made again: that they load is the proof that users' old conversations do.
"""

import json
import re
import shutil
from pathlib import Path

from front.program import Program, indented
from front.replies import THREADS, digest

SAVED = Path(__file__).resolve().parents[1] / "goldens" / "saved_sessions"
_FLAGS = f"--seed 1 --max-tokens 30 --threads {THREADS}".split()
_THOUGHT = "<think>\nThe user says something.\n\nI answer it.\n</think>\n\n"
_MOST_STEPS = 20
_NOTES = "Miriam's fox is called Karl.\n```\nIt likes carrots.\n```\n"

# What is typed to make each; /save and /fork name them.
TYPED = {
    "plain": "Hello!\nMy name is Miriam.\nWhat is my name?",
    "undone": "Hello!\nMy name is Miriam.\nWhat does a cow say?\nWhat is my name?\n/undo 2",
    "emptied": "Hello!\nMy name is Miriam.\n/undo 2",
    "edited": "Hello!\nMy name is Miriam.\nWhat is my name?\n/edit 2\nMy name is Karl.\nWhat is my name?",
    "edited-undone": "Hello!\nMy name is Miriam.\nWhat is my name?\n/edit 2\nMy name is Karl.\n/undo",
    "regenerated": "Hello!\nTell me a story about a fox.\n/regen\n/retry temperature=1.3\nThank you!",
    "regenerated-undone": "Hello!\n/regen\n/regen\n/undo 2",
    "continued": "Tell me a story about a fox.\n/continue\n/continue\n/undo",
    "cut": "Hello!\nTell me a story about a fox.",
    "system": "/system You are brief.\nHello!\n/system You are a pirate.\nWho are you?\n/undo\n/redo",
    "attached": "/file notes.txt\nWhat is the fox called?\n/file notes.txt\n/file more.md\nWhat does it like?\n/undo",
    "settings": "/set temperature 0.5\n/set top_k 7\n/set repeat_penalty 1.2\n/set overflow shift\n/set context 1200\n"
    '/set think 50\n/set stop ", ." "and then"\nTell me a story about a fox.\nThank you!',
    "foreign": 'Grüße! 你好 🦊\n  spaces, <|user|> between, spaces  \n"""\nTwo lines,\nquoted\n"""\n/undo 2\n/redo',
    "mixed": "Hello!\n/regen\nMy name is Miriam.\n/edit 2\nHello there!\nWhat does a cow say?\n/undo 3\n/redo 2\n"
    "/retry seed=9\nWhat is my name?\n/undo",
    "forked": "Hello!\nMy name is Miriam.\n/save forked\n/fork\nWhat is my name?\n/regen\n/undo",
}


def make_saved(folder):
    """Return the texts of session files by their names, as this version of the program writes them."""
    program = Program(folder)
    (program.folder / "notes.txt").write_text(_NOTES, encoding="utf-8")
    (program.folder / "more.md").write_text("# More\n\nIt sings.\n", encoding="utf-8")
    for name, typed in TYPED.items():
        last = "/save" if name == "forked" else f"/save {name}"
        program.succeed("chat", "demo", *_FLAGS, stdin=f"{typed}\n{last}\n")
    found = {path.name: path.read_text(encoding="utf-8") for path in program.sessions.glob("*.json")}
    return found | {f"{name}.json": made(found) for name, made in _DERIVED.items()}


def _thinking(found):
    """Return a conversation whose replies have think sections, which the demo model does not write."""
    saved = json.loads(found["regenerated-undone.json"])
    changes = [*saved["history"]["past"], *saved["history"]["future"]]
    for message in [*saved["messages"], *(message for change in changes for message in change["tail"])]:
        if message["role"] == "assistant":
            message["content"] = _THOUGHT + message["content"]
    return _as_file(saved)


def _stopped_in_thought(found):
    saved = json.loads(found["cut.json"])
    saved["messages"][-1]["content"] = "<think>\nThe user wants"
    return _as_file(saved)


def _without_history(found):
    """Return a conversation as versions wrote it that kept no history."""
    saved = json.loads(found["plain.json"])
    del saved["history"]
    return _as_file(saved)


def _waiting(found):
    """Return a conversation whose program was killed before the first word of a reply."""
    saved = json.loads(found["plain.json"])
    saved["history"]["past"].append({"kept": len(saved["messages"]), "tail": []})
    saved["messages"] += [
        {"role": "user", "content": "What does a cow say?", "partial": False},
        {"role": "assistant", "content": "", "partial": True},
    ]
    return _as_file(saved)


def _as_file(saved):
    return json.dumps(saved, ensure_ascii=False, indent=1) + "\n"


_DERIVED = {
    "thinking": _thinking,
    "stopped-in-thought": _stopped_in_thought,
    "without-history": _without_history,
    "waiting": _waiting,
}


def record_sessions(folder):
    """Return a file for each saved conversation: what the chat shows of it from one end of its history to the other."""
    walks = {}
    for path in sorted(SAVED.glob("*.json")):
        work = Path(folder) / path.stem
        work.mkdir()
        walks[f"{path.stem}.txt"] = _Walk(work, path).text()
    return walks


class _Walk:
    """The chat's view of one saved conversation."""

    def __init__(self, folder, saved):
        self._program = Program(folder)
        self._name = saved.stem
        self._saved = saved
        self._exports = 0

    def text(self):
        """Return how it is resumed, each step to both ends, the way back at once, and how it goes on."""
        past, future = self._lengths()
        steps = ["/redo"] * future + ["/undo"] * (past + future) + ["/redo"] * (past + future)
        walked = self._steps("--resume", steps)
        again = self._steps("--resume", [])
        # What was resumed is saved at each step.
        assert again[-1].messages == walked[-1].messages, f"{self._name} is not saved as it was left"
        self._restore()
        there = past + future
        jumps = [f"/redo {future}"] * (future > 0) + [f"/undo {there}", f"/redo {there}"] * (there > 0)
        jumped = self._steps("/load", jumps)
        assert [step.messages for step in jumped] == [walked[at].messages for at in self._ends(past, future)]
        self._restore()
        return "".join(
            [
                *map(str, walked),
                "\nat once\n",
                *(step.notices for step in jumped),
                "\nbeyond both ends\n",
                *(indented(self._refusal(f"{verb} {there + 1}")) for verb in ("/undo", "/redo")),
                "\ngoing on\n",
                self._going_on(walked[0].is_stopped),
            ]
        )

    @staticmethod
    def _ends(past, future):
        """Return which steps of the walk are at its beginning and its ends, those that are there."""
        newest, oldest = future, future + past + future
        return [0] + [newest] * (future > 0) + [oldest, oldest + past + future] * (past + future > 0)

    def _restore(self):
        self._program.sessions.mkdir(exist_ok=True, mode=0o700)
        shutil.copy(self._saved, self._program.sessions)

    def _lengths(self):
        """Return how many steps of undo and redo there are: as many as the chat makes before it refuses one."""
        return self._count("undo"), self._count("redo")

    def _count(self, verb):
        self._restore()
        typed = "".join(f"/{verb}\n/export {verb}-{number}.md\n" for number in range(_MOST_STEPS))
        self._program.run("chat", "--resume", self._name, *_FLAGS, stdin=typed)
        count = len([*self._program.folder.glob(f"{verb}-*.md")])
        assert count < _MOST_STEPS
        self._restore()
        return count

    def _refusal(self, line):
        ended = self._program.run("chat", "--resume", self._name, *_FLAGS, stdin=f"{line}\n")
        assert ended.code == 1, f"{line} is not refused"
        return ended.err.splitlines()[-1]

    def _steps(self, way, commands):
        """Resume the conversation, run commands, and return what is seen after each."""
        typed, begin = [], ["--resume", self._name]
        if way == "/load":
            typed, begin = [f"/load {self._name}\n"], []
        first = self._exports
        for command in ["", *commands]:
            self._exports += 1
            typed.append(f"{command}\n/export {self._exports}.md\n/export {self._exports}.json\n")
        ended = self._program.succeed("chat", *begin, *_FLAGS, stdin="".join(typed))
        assert ended.out == "", "nothing was to be answered"
        notices = re.split(r"^written: \d+\.md\nwritten: \d+\.json\n", ended.err, flags=re.MULTILINE)
        return [
            _Step(command or way, indented(said), self._program.folder / str(first + number))
            for number, (command, said) in enumerate(zip(["", *commands], notices), 1)
        ]

    def _going_on(self, is_stopped):
        """Return the chat's settings, the reply to one more message, and how a stopped reply goes on."""
        typed = "/continue\n" * is_stopped + "/show\nWhat does a cow say?\n/undo\n"
        ended = self._program.succeed("chat", "--resume", self._name, "--threads", THREADS, stdin=typed)
        return f"{indented(ended.err)}  replies\n{indented(ended.out)}"


class _Step:
    """The output of one command, and the conversation as it is exported."""

    def __init__(self, command, notices, export):
        self.command, self.notices = command, notices
        self.document = export.with_suffix(".md").read_text(encoding="utf-8")
        self.messages = json.loads(export.with_suffix(".json").read_text(encoding="utf-8"))

    @property
    def is_stopped(self):
        """Whether the last reply can be continued."""
        return "(stopped)" in self.document.rpartition("\n## ")[2].partition("\n")[0]

    def __str__(self):
        return f"{self.command}\n{self.notices}  {digest(self.messages)}\n{indented(self.document, 6)}\n"
