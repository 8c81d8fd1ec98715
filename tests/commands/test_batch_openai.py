"""Lines of OpenAI's batches are answered in their own form."""

import pytest
from batches import TASKS, results_of
from fake_model import Continuation, fake_model

MESSAGE = {"role": "user", "content": "hi"}
PARTS = {"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}
IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}


@pytest.fixture(autouse=True)
def replies(console):
    console.model = fake_model(Continuation({"hi": " there", "Once": " upon"}), has_template=True)


def line_of(name, url="/v1/chat/completions", method="POST", **body):
    return {"custom_id": name, "method": method, "url": url, "body": {"model": "any", **body}}


def test_answers_have_the_form_of_what_was_asked(console, batch_files):
    lines = [
        line_of("a", messages=[MESSAGE], max_completion_tokens=3, temperature=0, n=1),
        line_of("b", "/v1/completions", prompt="Once", stop=["p"], seed=3),
        line_of("c", messages=[PARTS], max_tokens=3, temperature=0),
    ]
    source, target = batch_files([*lines, TASKS[0]])
    assert console.run("batch", source, "fake", "-o", target)[0] == 0
    *results, ours = results_of(target)
    assert ours["id"] == 4
    assert [result["custom_id"] for result in results] == list("abc")
    assert [(result["response"]["status_code"], result["error"]) for result in results] == [(200, None)] * 3
    first, second, third = (result["response"]["body"] for result in results)
    assert (first["object"], first["model"]) == ("chat.completion", "fake")
    (choice,) = first["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"] == third["choices"][0]["message"], "texts in parts are joined"
    assert choice["finish_reason"] == "length"
    assert first["usage"]["completion_tokens"] == 3
    assert first["usage"]["total_tokens"] == first["usage"]["prompt_tokens"] + 3
    assert (second["object"], second["choices"][0]["text"]) == ("text_completion", " u")


REFUSED = [
    (line_of("x", messages=[MESSAGE], tools=5), "tools must be a list of at most 512 tools"),
    (line_of("x", "/v1/embeddings", input="x"), "url must be /v1/chat/completions or /v1/completions"),
    (line_of("x", messages=[MESSAGE], n=2), "n must be 1"),
    (line_of("x", method="GET", messages=[MESSAGE]), "method must be POST"),
    (line_of("x", messages=[IMAGE]), "messages[0].content[0].image_url must be a data: URL"),
    (line_of("x", "/v1/completions", prompt=["Once"]), "prompt must be a text"),
    ({"custom_id": "x", "url": "/v1/completions", "body": "Once"}, "body must be an object"),
    (line_of("x", messages=[MESSAGE]) | {"temperature": 0}, "unknown key 'temperature'"),
]


def test_what_is_not_supported_is_refused_in_that_form_too(console, batch_files):
    source, target = batch_files([line for line, _ in REFUSED])
    assert console.run("batch", source, "fake", "-o", target)[0] == 1
    results = results_of(target)
    assert {(result["custom_id"], result["response"]["status_code"], result["error"]) for result in results} == {
        ("x", 400, None)
    }
    problems = [result["response"]["body"]["error"]["message"] for result in results]
    for problem, (_, expected) in zip(problems, REFUSED, strict=True):
        assert problem.startswith(expected)


def test_a_response_format_makes_the_reply_json(console, batch_files):
    pytest.importorskip("llguidance")
    console.model = fake_model(lambda ids: None)
    schema = {"enum": ["yes", "no"]}
    named = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}
    lines = [
        line_of("schema", messages=[MESSAGE], response_format=named),
        line_of("object", messages=[MESSAGE], response_format={"type": "json_object"}, max_tokens=1),
        {"id": "ours", "prompt": "hi", "response_format": named},
        line_of(
            "bad", messages=[MESSAGE], response_format={"type": "json_schema", "json_schema": {"schema": {"type": 5}}}
        ),
        line_of("none", messages=[MESSAGE], response_format={"type": "json_schema"}),
        line_of("text", messages=[MESSAGE], response_format={"type": "text"}, max_tokens=1),
    ]
    source, target = batch_files(lines)
    assert console.run("batch", source, "fake", "-o", target, "--seed", "1", "--top-k", "0")[0] == 1
    found, an_object, ours, bad, none, text = results_of(target)
    assert found["response"]["body"]["choices"][0]["message"]["content"] in ('"yes"', '"no"')
    assert an_object["response"]["body"]["choices"][0]["message"]["content"] == "{"
    assert ours["text"] in ('"yes"', '"no"')
    assert bad["response"]["body"]["error"]["message"].startswith("response_format cannot be used: ")
    assert none["response"]["body"]["error"]["message"].startswith('response_format must be {"type": "text"}, ')
    assert text["response"]["status_code"] == 200
    before = target.read_bytes()
    console.run("batch", source, "fake", "-o", target, "--seed", "1", "--top-k", "0")
    assert target.read_bytes() == before
    source.write_text(source.read_text().replace('"yes"', '"perhaps"'))
    code, *_ = console.run("batch", source, "fake", "-o", target, "--seed", "1", "--top-k", "0")
    assert (code, target.read_bytes()) == (1, before), "results of another schema are refused"


def test_lines_that_have_a_result_are_not_answered_again(console, batch_files):
    source, target = batch_files([line_of("a", messages=[MESSAGE]), REFUSED[0][0]])
    assert console.run("batch", source, "-o", target)[0] == 1
    before = target.read_bytes()
    assert console.run("batch", source, "-o", target)[0] == 1
    assert target.read_bytes() == before
    assert len(console.loaded) == 1
