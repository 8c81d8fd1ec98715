"""Lines for a batch, what a fake model says to them, and the results."""

import json

from fake_model import Continuation

STORY = Continuation({"Once": " upon a time", "Twice": " a day"})
TASKS = [{"prompt": "Once"}, {"id": "b", "prompt": "Twice"}, {"prompt": "Once", "max_tokens": 3}]


def results_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
