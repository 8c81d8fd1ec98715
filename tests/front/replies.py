"""Replies of the demo model to seeded requests, alone and several at once, with and without drafts."""

import hashlib
import json
from itertools import product

import tinychat
from front.program import Program

SEEDS = range(20)
WHOLE = 4  # replies whose text stands beside its digest
PROMPTS = (
    "Tell me a story about a fox.",
    "What is the capital of France?",
    "Hello! Who are you?",
    "Tell me a story about a robot who likes rain.",
    "What does a cow say?",
)
# What a text that is continued as it is begins with.
BEGINNINGS = (
    "Once upon a time there was a fox who",
    "In the forest there lived a young robot called",
    "Hello! My name is",
    "One day, the cat and the dog",
    "The capital of France is",
)
# One more than there are prompts: so each sampler meets several of them.
SAMPLERS = (
    {},
    {"top_k": 5},
    {"temperature": 1.5, "min_p": 0.1},
    {"repeat_penalty": 1.3, "top_p": 0.8},
    {"temperature": 0, "max_tokens": 25},
    {"stop": [".", "!"]},
)
PARALLEL = (1, 8)
DRAFT = ("on", "off")
SMALL_CONTEXT = 48
# One thread waits for no other where all cores are busy; the number contract makes the ids the same.
THREADS = 1
_SPOKEN = [
    {"role": "user", "content": "My name is Miriam."},
    {"role": "assistant", "content": "Nice to meet you, Miriam!"},
]


def settings_of(seed):
    """Return the settings of a request by the names that batch lines have for them."""
    return {"max_tokens": 60} | SAMPLERS[seed % len(SAMPLERS)] | {"seed": seed}


def prompt_of(seed):
    """Return the question of a request."""
    return PROMPTS[seed % len(PROMPTS)]


def record_replies(folder):
    """Return a file for each way to ask, which holds for every draft setting and number of replies at once."""
    program = Program(folder)
    return {
        "complete.txt": _same({draft: _complete(program, draft) for draft in DRAFT}),
        "samples.txt": _samples(program),
        "batch.txt": _same({parallel: _batch(program, parallel, 1024) for parallel in PARALLEL}),
        "batch-small-context.txt": _same({parallel: _batch(program, parallel, SMALL_CONTEXT) for parallel in PARALLEL}),
        "python-stream.txt": _same({draft: _streams(draft == "on") for draft in DRAFT}),
        "python-generate_many.txt": _same({ways: _many(ways[0] == "on", ways[1]) for ways in product(DRAFT, PARALLEL)}),
    }


def _same(texts):
    """Return the text that all ways to compute it give."""
    (first, text), *others = texts.items()
    for way, other in others:
        assert other == text, f"{way} gives other replies than {first}"
    return text


def _complete(program, draft):
    lines = []
    for seed in SEEDS:
        settings = settings_of(seed)
        stops = [f"--stop={text}" for text in settings.pop("stop", ())]
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        raw = ["--raw"] if seed % 7 == 6 else []
        asked = ["complete", "demo", "-p", prompt_of(seed), "--json", "--draft", draft, "--threads", THREADS]
        report = json.loads(program.succeed(*asked, *flags, *stops, *raw).out)
        lines.append(_line(f"seed {seed}", report, seed < WHOLE))
    return "".join(lines)


def _samples(program):
    """Return replies that are written at once, as many as turn out to be fastest."""
    flags = ["--json", "--max-tokens", "60", "--seed", SEEDS[0], "-n", len(SEEDS), "--threads", THREADS]
    reports = json.loads(program.succeed("complete", "demo", "-p", PROMPTS[0], *flags).out)
    return "".join(_line(f"seed {seed}", report, seed < WHOLE) for seed, report in zip(SEEDS, reports, strict=True))


def _batch(program, parallel, context):
    text = "".join(f"{json.dumps(_task(seed))}\n" for seed in SEEDS)
    flags = ["--parallel", parallel, "--context", context, "--max-tokens", "60", "--threads", THREADS]
    # Lines that do not fit have an error in the place of a reply; the exit code then says so.
    results = map(json.loads, program.run("batch", "-", "demo", "-o", "-", *flags, stdin=text).out.splitlines())
    return "".join(_result(seed, result) for seed, result in zip(SEEDS, results, strict=True))


def _task(seed):
    """Return a line with a prompt, with messages, or in OpenAI's form."""
    settings, asked = settings_of(seed), {"role": "user", "content": prompt_of(seed)}
    match seed % 3:
        case 0:
            return {"prompt": asked["content"]} | settings
        case 1:
            return {"id": f"line {seed}", "messages": [*_SPOKEN * (seed % 4), asked]} | settings
    settings.pop("repeat_penalty", None)
    body = {"model": "any", "messages": [*_SPOKEN, asked]} | settings
    return {"custom_id": f"line {seed}", "method": "POST", "url": "/v1/chat/completions", "body": body}


def _result(seed, result):
    if "response" not in result:
        name, error, report = result["id"], result.get("error"), result
    else:
        body = result["response"]["body"]
        name, error, report = result["custom_id"], body.get("error", {}).get("message"), body
    if error:
        return f"{name}: error: {error}\n"
    if report is not result:
        choice, usage = body["choices"][0], body["usage"]
        report = {
            "text": choice["message"]["content"],
            "finish_reason": choice["finish_reason"],
            "new_tokens": usage["completion_tokens"],
        }
    return _line(name, report, seed < WHOLE)


def _streams(draft):
    model = tinychat.load("demo", draft=draft, threads=THREADS)
    lines = []
    for seed in SEEDS:
        run = model.stream(BEGINNINGS[seed % len(BEGINNINGS)], **settings_of(seed))
        text = "".join(piece.text for piece in run)
        lines.append(_line(f"seed {seed}", _report(run.reply, text), seed < WHOLE))
    greedy = [model.generate(model.encode(prompt), max_tokens=40) for prompt in BEGINNINGS]
    return "".join([*lines, *(f"generate {number}: {digest(ids)}\n" for number, ids in enumerate(greedy))])


def _many(draft, parallel):
    model = tinychat.load("demo", draft=draft, threads=THREADS)
    lines = []
    for seed in SEEDS:
        replies = model.generate_many(BEGINNINGS, parallel, **settings_of(seed))
        lines += [
            _line(f"seed {seed}, prompt {number}", _report(reply, reply.text), seed < 1)
            for number, reply in enumerate(replies)
        ]
    return "".join(lines)


def _report(reply, text):
    ids = reply.token_ids
    return {"text": text, "token_ids": ids, "new_tokens": len(ids), "finish_reason": reply.finish_reason}


def _line(name, report, is_whole):
    """Return how a reply ended, the digest of its ids, or of its text where there are none, and perhaps its text."""
    found = digest(report.get("token_ids") or report["text"])
    text = f"    {json.dumps(report['text'])}\n" if is_whole else ""
    return f"{name}: {report['new_tokens']} tokens, {report['finish_reason']}, {found}\n{text}"


def digest(value):
    """Return a short digest of a text, or of anything that JSON can express."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:20]
