"""The errors of each entry for bad values of each setting, also where it has no such setting."""

import json
import math
from itertools import groupby

import tinychat
from front.program import Program

# Three values for each, of a wrong range, a wrong kind, a wrong form.
SETTINGS = {
    "temperature": (-1, 101, "warm"),
    "top_k": (-1, 1.5, "many"),
    "top_p": (0, 1.5, math.nan),
    "min_p": (-0.1, 2, "least"),
    "repeat_penalty": (0, 101, True),
    "repeat_last_n": (-1, 2.5, "all"),
    "seed": (-1, 1.5, "dice"),
    "max_tokens": (0, 2.5, "few"),
    "stop": ("", ["end", ""], 5),
    "ignore_eos": ("yes", 2, ""),
    "logprobs": (-1, 1001, "some"),
    "think_budget": (-1, 1.5, "short"),
    "think": ("perhaps", -1, 1.5),
    "context": (0, -1, "wide"),
    "threads": (0, 1.5, "all"),
    "kv": ("f64", "", 16),
    "share": (0, 0.5, "half"),
    "cache_memory": (0, -1, "lots"),
    "cache_disk": (-1, "big", ""),
    "draft": (" ", 2, ""),
    "overflow": ("forget", "", 3),
    "system": ("", 5, True),
    "plain": ("maybe", 2, ""),
    "stats": ("maybe", 2, ""),
    "samples": (0, 1.5, "many"),
    "parallel": (0, 257, "all"),
    "role": ("nobody", "", 5),
    "temprature": (1,),  # no entry has it
}

# Fields that OpenAI's bodies have beside those.
OPENAI = {
    "max_completion_tokens": (0, 2.5, "few"),
    "n": (0, 2, "many"),
    "best_of": (0, 2, "many"),
    "stream": (True, 1, "yes"),
    "frequency_penalty": (1, -3, "high"),
    "presence_penalty": (1, -3, "high"),
    "top_logprobs": (5, -1, "all"),
    "logit_bias": ({"5": 1}, 1, "up"),
    "response_format": ({"type": "json_object"}, 1, "json"),
    "tools": ([], 1, "hammer"),
}

CONFIGURATIONS = (
    "model = 5",
    'models = "demo"',
    "roles = 1",
    "aliases = []",
    '[models]\ndemo = "small"',
    "[roles.short]\nmodel = 7",
    "[aliases]\nsmall = 5",
    '[aliases]\nsmall = ""',
    "[defaults]\ntemperature = 0.5",
)

_ASKED = {"messages": [{"role": "user", "content": "Hello!"}]}


def record_errors(folder):
    """Return a file for each entry."""
    program = Program(folder)
    (program.folder / "in.jsonl").write_text(json.dumps(_ASKED) + "\n", encoding="utf-8")
    model = tinychat.load("demo")
    ids = model.encode("Hello")
    commands = {
        "complete": ["complete", "demo", "-p", "Hello", "--json", "--max-tokens", "1"],
        "chat": ["chat", "demo"],
        "batch": ["batch", "in.jsonl", "demo", "-o", "-", "--max-tokens", "1"],
    }
    calls = {
        "load": lambda **given: tinychat.load("demo", **given),
        "stream": lambda **given: model.stream(ids, **given).to_end(),
        "generate": lambda **given: model.generate(ids, **given),
        "generate_many": lambda **given: model.generate_many([ids], **given),
        "chat": lambda **given: tinychat.Chat(model, **given),
    }
    return (
        {f"flags-{name}.txt": _each(_flag(program, command)) for name, command in commands.items()}
        | {f"python-{name}.txt": _each(_keyword(call)) for name, call in calls.items()}
        | {
            "config.txt": _each(_key(program, "")),
            "config-model.txt": _each(_key(program, '[models."demo"]')),
            "config-role.txt": _each(_key(program, "[roles.reviewer]")),
            "config-sections.txt": "".join(f"{text}\n    {_configured(program, text)}\n" for text in CONFIGURATIONS),
            "chat-set.txt": _each(_typed(program, "/set {} {}")),
            "chat-retry.txt": _each(_typed(program, "/retry {}={}")),
            "batch-lines.txt": _batch(program, SETTINGS, lambda line: _ASKED | line, lambda result: result["error"]),
            "batch-openai-lines.txt": _batch(program, SETTINGS | OPENAI, _openai_line, _openai_error),
        }
    )


def _each(answer):
    return _listing((name, value, answer(name, value)) for name, values in SETTINGS.items() for value in values)


def _listing(answers):
    """Return a text of names, values and answers; values of a setting with one answer stand in one line."""
    blocks = groupby(answers, key=lambda one: (one[0], one[2]))
    return "".join(
        f"{name} = {', '.join(_spelled(value) for _, value, _ in ones)}\n    {answer}\n"
        for (name, answer), ones in blocks
    )


def _spelled(value):
    return json.dumps(value).lower() if isinstance(value, float) else json.dumps(value)


def _flag(program, command):
    def answer(name, value):
        texts = value if isinstance(value, list) else [value]
        flag = f"--{name.replace('_', '-')}"
        flags = [f"{flag}={text if isinstance(text, str) else _spelled(text)}" for text in texts]
        return program.run(*command, *flags).refusal

    return answer


def _key(program, section):
    return lambda name, value: _configured(program, f"{section}\n{name} = {_spelled(value)}\n")


def _configured(program, text):
    program.configuration.write_text(text, encoding="utf-8")
    try:
        return program.run("config").refusal
    finally:
        program.configuration.unlink()


def _typed(program, command):
    def answer(name, value):
        texts = value if isinstance(value, list) else [value]
        quoted = " ".join(json.dumps(text) if text == "" or isinstance(value, list) else str(text) for text in texts)
        return program.run("chat", "demo", stdin=f"{command.format(name, quoted)}\n").refusal

    return answer


def _keyword(call):
    def answer(name, value):
        try:
            call(**{name: value})
        except tinychat.TinychatError as error:
            return f"{type(error).__name__}: {error}"
        except Exception as error:
            # Its words are those of Python, which differ from version to version.
            return type(error).__name__
        return "accepted"

    return answer


def _batch(program, settings, line_of, error_of):
    """Return the errors of a batch for lines that each have one bad value."""
    given = [(name, value) for name, values in settings.items() for value in values]
    text = "".join(f"{json.dumps(line_of({name: value}))}\n" for name, value in given)
    ended = program.run("batch", "-", "demo", "-o", "-", "--max-tokens", "1", stdin=text)
    results = map(json.loads, ended.out.splitlines())
    return _listing((*one, error_of(result) or "accepted") for one, result in zip(given, results, strict=True))


def _openai_line(fields):
    return {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": _ASKED | fields}


def _openai_error(result):
    body = result["response"]["body"]
    return body["error"]["message"] if "error" in body else None
