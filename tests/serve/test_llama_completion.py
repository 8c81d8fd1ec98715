"""llama-server's own endpoints: its names of fields, its special values, its answers."""

import pytest
from fake_model import EOS, Continuation, fake_model
from local_server import events_of, in_process, keep_open, new_server

import tinychat
from tinychat.generate.request import Request

PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def model():
    with tinychat.load("demo") as model:
        yield model


@pytest.fixture(scope="module")
def client(model):
    server = new_server(model)
    keep_open(server)
    with in_process(server) as client:
        client.state = server
        yield client


def post(client, path, status=200, **body):
    answer = client.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def completed(client, **body):
    return post(client, "/completion", **{"prompt": PROMPT, "n_predict": 12, **body})


def test_a_completion_is_the_models_own(client, model):
    answer = completed(client, return_tokens=True)
    assert answer["tokens"] == model.generate(model.encode(PROMPT), max_tokens=12)
    assert answer["content"] == model.decode([*model.encode(PROMPT), *answer["tokens"]]).removeprefix(PROMPT)
    assert (answer["stop"], answer["stop_type"], answer["stopping_word"]) == (True, "limit", "")
    assert (answer["tokens_predicted"], answer["tokens_evaluated"]) == (12, len(model.encode(PROMPT)))
    assert answer["model"] == model.name and answer["index"] == 0 and answer["id_slot"] in range(16)
    assert answer["prompt"] == model.tokenizer.decode(model.encode(PROMPT), skip_special=False)
    assert not answer["truncated"]
    timings = answer["timings"]
    assert timings["cache_n"] + timings["prompt_n"] == answer["tokens_evaluated"]
    assert timings["predicted_n"] == 12 and timings["predicted_ms"] > 0 and timings["prompt_per_second"] > 0
    settings = answer["generation_settings"]
    assert (settings["n_predict"], settings["temperature"], settings["n_ctx"]) == (12, 0.0, model.context_size)


def test_tokens_are_left_out_unless_they_are_asked_for(client):
    assert completed(client)["tokens"] == []


def test_a_second_request_finds_the_prompt_cached(client, model):
    prompt = "Tom had a red ball. " * 8
    first, second = (completed(client, prompt=prompt) for _ in range(2))
    assert second["content"] == first["content"]
    assert second["tokens_cached"] == second["timings"]["cache_n"] == first["tokens_evaluated"] - 1
    assert second["timings"]["prompt_n"] == 1


def test_a_stream_adds_up_to_the_whole(client):
    whole = completed(client, return_tokens=True)
    answer = client.post("/completion", json={"prompt": PROMPT, "n_predict": 12, "stream": True})
    *partial, last = events_of(answer.text)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert "".join(one["content"] for one in partial) == whole["content"]
    assert [token for one in partial for token in one["tokens"]] == whole["tokens"]
    assert [one["stop"] for one in partial] == [False] * len(partial)
    assert [one["tokens_predicted"] for one in partial][-1] == 12
    assert last["stop"] and last["content"] == "" and last["tokens"] == [] and last["stop_type"] == "limit"
    assert "timings" in last and "timings" not in partial[0]


def test_times_and_progress_come_with_the_events_that_ask_for_them(client):
    body = {"prompt": "A dog ran " * 40, "n_predict": 3, "stream": True, "timings_per_token": True}
    answer = client.post("/completion", json=body | {"return_progress": True})
    events = events_of(answer.text)
    progress = [one["prompt_progress"] for one in events if "prompt_progress" in one]
    assert progress[-1]["processed"] == progress[-1]["total"] == events[-1]["tokens_evaluated"]
    assert all(one["cache"] <= one["processed"] for one in progress)
    assert all("timings" in one for one in events if one["content"])


def test_prompts_are_texts_ids_both_or_lists_of_them(client, model):
    ids = model.encode(PROMPT)
    expected = completed(client)["content"]
    begun = model.encode("Once upon")
    assert completed(client, prompt=ids)["content"] == expected
    assert completed(client, prompt={"prompt_string": PROMPT})["content"] == expected
    assert completed(client, prompt=["Once upon", *ids[len(begun) :]])["content"] == expected
    answers = completed(client, prompt=[PROMPT, ids, "Tom"])
    assert [one["index"] for one in answers] == [0, 1, 2]
    assert [one["content"] for one in answers[:2]] == [expected] * 2
    assert [one["content"] for one in completed(client, prompt=[PROMPT])] == [expected]


def test_control_tokens_of_a_rendered_prompt_count(client, model):
    rendered = post(client, "/apply-template", messages=[{"role": "user", "content": "Hi"}])["prompt"]
    prompt = model.chat_prompt([{"role": "user", "content": "Hi"}])
    answer = completed(client, prompt=rendered.removeprefix(model.tokenizer.bos_token or ""))
    assert answer["tokens_evaluated"] == len(prompt.ids)
    assert answer["prompt"] == model.tokenizer.decode(prompt.ids, skip_special=False)


def test_a_prompt_can_be_read_without_a_reply(client, model):
    prompt = "Lily saw a big tree in the park and " * 4
    answer = completed(client, prompt=prompt, n_predict=0, return_tokens=True)
    assert (answer["content"], answer["tokens"], answer["tokens_predicted"]) == ("", [], 0)
    assert answer["stop_type"] == "limit" and answer["timings"]["predicted_n"] == 0
    assert completed(client, prompt=prompt)["tokens_cached"] == answer["tokens_evaluated"] - 1
    events = events_of(client.post("/completion", json={"prompt": prompt, "n_predict": 0, "stream": True}).text)
    assert [one["content"] for one in events] == [""]


def test_a_stop_string_is_named(client):
    text = completed(client, n_predict=20)["content"]
    word = text.split()[3]
    answer = completed(client, n_predict=20, stop=[word])
    assert (answer["stop_type"], answer["stopping_word"]) == ("word", word)
    assert answer["content"] == text.partition(word)[0]


def test_the_end_of_the_model_is_eos_and_can_be_ignored():
    model = fake_model(Continuation({"ab": "cd\n"}), context_size=64)
    with in_process(new_server(model)) as client:
        answer = completed(client, prompt="ab", n_predict=-1, return_tokens=True)
        assert (answer["content"], answer["stop_type"], answer["has_new_line"]) == ("cd\n", "eos", True)
        answer = completed(client, prompt="ab", n_predict=5, ignore_eos=True, return_tokens=True)
        assert answer["tokens"] == [*b"cd\n", EOS, EOS] and answer["stop_type"] == "limit"
        # Nothing is shifted or cut: the reply ends where the context does.
        answer = completed(client, prompt="ab", n_predict=-1, ignore_eos=True)
        assert answer["truncated"] and answer["tokens_evaluated"] + answer["tokens_predicted"] > 64


def test_probabilities_of_the_most_likely_tokens(client):
    answer = completed(client, n_probs=3, n_predict=4, return_tokens=True)
    found = answer["completion_probabilities"]
    assert [one["id"] for one in found] == answer["tokens"]
    for one in found:
        assert len(one["top_logprobs"]) == 3 and one["top_logprobs"][0]["id"] == one["id"]
        assert bytes(one["bytes"]).decode(errors="replace") == one["token"] and one["logprob"] <= 0
    stream = client.post("/completion", json={"prompt": PROMPT, "n_predict": 4, "n_probs": 3, "stream": True})
    streamed = [each for one in events_of(stream.text) for each in one.get("completion_probabilities", ())]
    assert streamed == found
    assert "completion_probabilities" not in completed(client)


def test_samplers_have_llama_servers_names_and_special_values(client, model):
    body = {"temperature": 0.9, "seed": 7, "repeat_last_n": -1, "top_k": -1, "repeat_penalty": 1.2, "top_n_sigma": -1}
    answer = completed(client, **body, dry_penalty_last_n=-1, mirostat=0, typical_p=1.0, dynatemp_range=0, n_keep=3)
    settings = answer["generation_settings"]
    size = model.context_size
    assert (settings["repeat_last_n"], settings["dry_penalty_last_n"], settings["top_k"]) == (size, size, 0)
    request = Request(
        temperature=0.9, seed=7, repeat_last_n=size, dry_penalty_last_n=size, top_k=0, repeat_penalty=1.2, max_tokens=12
    )
    expected = model.stream(PROMPT, **request.values()).to_end()
    assert answer["content"] == expected.text
    assert settings["seed"] == 7
    drawn = completed(client, temperature=0.9, seed=-1)["generation_settings"]["seed"]
    assert completed(client, temperature=0.9, seed=drawn)["generation_settings"]["seed"] == drawn


def test_a_list_of_samplers_switches_the_others_off(client):
    settings = completed(client, samplers=["top_k", "temperature"])["generation_settings"]
    assert (settings["top_p"], settings["min_p"], settings["top_k"]) == (1.0, 0.0, 40)
    error = post(client, "/completion", 400, prompt="a", samplers=["top_k", "magic"])["error"]
    assert error["param"] == "samplers" and "magic" in error["message"]


def test_biases_are_pairs_of_ids_or_texts(client, model):
    first = completed(client, return_tokens=True)["tokens"][0]
    other = model.encode("zebra", add_bos=False)
    for bias in ([[first, False]], {str(first): -100}, [[first, -100.0]]):
        assert completed(client, logit_bias=bias, return_tokens=True)["tokens"][0] != first
    assert completed(client, logit_bias=[["zebra", 100]], return_tokens=True)["tokens"][0] in other
    for wrong in ([[1]], {"9" * 19: 1}, {"9" * 5000: 1}, [[10**30, 1]]):
        assert post(client, "/completion", 400, prompt="a", logit_bias=wrong)["error"]["param"] == "logit_bias"


def test_json_schemas_and_grammars_constrain(client):
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}, "required": ["n"]}
    assert completed(client, json_schema=schema | {"additionalProperties": False}, n_predict=30)["content"][0] == "{"
    answer = completed(client, grammar='root ::= "yes" | "no"')
    assert answer["content"] in ("yes", "no") and answer["stop_type"] == "eos"
    error = post(client, "/completion", 400, prompt="a", grammar="root ::= (")["error"]
    assert "grammar" in error["message"]


def test_fields_of_the_answer_can_be_chosen(client):
    paths = ["content", "generation_settings/n_predict", "timings/prompt_n", "no/such", "content/deeper"]
    answer = completed(client, response_fields=paths)
    assert set(answer) == {"content", "generation_settings/n_predict", "timings/prompt_n"}
    assert answer["generation_settings/n_predict"] == 12


def test_several_completions_of_one_prompt(client):
    answers = completed(client, n_cmpl=3, temperature=1.0, seed=5)
    assert len(answers) == 3
    alone = completed(client, temperature=1.0, seed=6)
    assert answers[1]["content"] == alone["content"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": [["a", {}]]}, "prompt[0]"),
        ({"prompt": "a", "n_predict": -3}, "n_predict"),
        ({"prompt": "a", "n_predict": 1.5}, "n_predict"),
        ({"prompt": "a", "mirostat": 2}, "mirostat"),
        ({"prompt": "a", "mirostat": False}, "mirostat"),
        ({"prompt": "a", "typical_p": 0.5}, "typical_p"),
        ({"prompt": "a", "temperature": "hot"}, "temperature"),
        ({"prompt": "a", "repeat_last_n": -2}, "repeat_last_n"),
        ({"prompt": "a", "t_max_predict_ms": 100}, "t_max_predict_ms"),
        ({"prompt": "a", "id_slot": "first"}, "id_slot"),
        ({"prompt": "a", "response_fields": "content"}, "response_fields"),
        ({"prompt": "a", "no_such_field": 1}, "no_such_field"),
        ({"prompt": {"prompt_string": "a", "multimodal_data": ["x"]}}, "prompt.multimodal_data"),
    ],
)
def test_wrong_fields_are_named(client, body, param):
    assert post(client, "/completion", 400, **body)["error"]["param"] == param


def test_a_prompt_that_does_not_fit_is_refused_with_numbers():
    model = fake_model(lambda ids: EOS, context_size=16)
    with in_process(new_server(model)) as client:
        error = post(client, "/completion", 400, prompt="far too long a prompt")["error"]
        assert (error["n_prompt_tokens"], error["n_ctx"]) == (22, 16)
