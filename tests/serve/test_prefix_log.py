"""The line that tells who runs the server why a prompt was read again."""

import re

import pytest
from local_server import demo, in_process, keep_open, new_server

RULES = "You are a fox who tells long stories to the king. " * 12


@pytest.fixture
def lines():
    return []


@pytest.fixture
def client(lines, kernel_cache):
    with demo() as model:
        server = new_server(model, parallel=4, log=lines.append)
        keep_open(server)
        with in_process(server) as client:
            client.model = model
            yield client


def ask(client, time, text, **fields):
    messages = [{"role": "system", "content": f"{RULES} It is {time}. {RULES}"}, {"role": "user", "content": text}]
    answer = client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 2, **fields})
    assert answer.status_code == 200
    return answer


def test_a_prompt_that_leaves_the_cache_is_told_of(client, lines):
    """A clock in the system prompt, for example, lets all behind it be read again."""
    ask(client, "noon", "Hello")
    ask(client, "noon", "Hello")
    ask(client, "noon", "Another question with the same rules.")
    assert lines == []
    ask(client, "midnight", "Hello", stream=True)
    form = (
        r"request 3: (\d+) of (\d+) prompt tokens were cached: it differs from an earlier prompt at token (\d+), "
        "and the same text behind that was read again"
    )
    cached, count, position = map(int, re.fullmatch(form, lines.pop()).groups())
    begins = len(client.model.render_ids([{"role": "system", "content": f"{RULES} It is"}], False))
    assert abs(position - begins) < 8
    assert position - 64 < cached <= position < count
    assert lines == []


def test_another_conversation_with_the_same_rules_is_not_told_of(client, lines):
    cow, moon = ("Tell me about the cow that jumps. " * 20, "Why does the moon shine at night? " * 20)
    for text in (cow, moon):
        ask(client, "noon", text)
    assert lines == []


def test_prompts_that_share_nothing_are_not_told_of(client, lines):
    ask(client, "noon", "Hello")
    assert client.post("/completion", json={"prompt": "Once upon a time " * 40, "n_predict": 1}).status_code == 200
    assert lines == []
