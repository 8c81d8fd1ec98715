"""llama-server's endpoints beside /completion: texts, /infill, and what they tell of the server."""

import re

import pytest
from fake_model import BOS, ByteTokenizer, Continuation, MarkerTemplate, fake_model
from local_server import events_of, in_process, keep_open, new_server

import tinychat
from tinychat.serve.metrics import Metrics
from tinychat.serve.server import ServerOptions

PROMPT = "Tom and his dog went to the park. " * 6


@pytest.fixture(scope="module")
def model():
    with tinychat.load("demo") as model:
        yield model


@pytest.fixture
def server(model, tmp_path):
    server = new_server(model, parallel=4, options=ServerOptions(slot_folder=tmp_path))
    keep_open(server)
    return server


@pytest.fixture
def client(server):
    with in_process(server) as client:
        yield client


@pytest.fixture
def fake():
    """Return a function that serves a fake model."""
    opened = []

    def serve(model):
        client = in_process(new_server(model, parallel=4))
        opened.append(client)
        return client.__enter__()

    yield serve
    for client in opened:
        client.__exit__(None, None, None)


def post(client, path, status=200, **body):
    answer = client.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def test_tokens_of_a_text_and_back(client, model):
    text = "Once upon a time, héllo 😀"
    ids = post(client, "/tokenize", content=text)["tokens"]
    assert ids == model.encode(text, add_bos=False)
    assert post(client, "/tokenize", content=text, add_special=True)["tokens"] == model.encode(text)
    assert post(client, "/detokenize", tokens=ids)["content"] == text
    pieces = post(client, "/tokenize", content=text, with_pieces=True)["tokens"]
    assert [piece["id"] for piece in pieces] == ids
    spelled = [piece["piece"] for piece in pieces]
    assert b"".join(one.encode() if isinstance(one, str) else bytes(one) for one in spelled).decode().strip() == text


def test_bytes_that_are_no_characters_come_as_numbers(fake):
    tokens = post(fake(fake_model(len)), "/tokenize", content="aé", with_pieces=True)["tokens"]
    assert tokens == [{"id": 97, "piece": "a"}, {"id": 0xC3, "piece": [0xC3]}, {"id": 0xA9, "piece": [0xA9]}]


def test_names_of_control_tokens_are_parsed_unless_told_otherwise(fake):
    client = fake(fake_model(len))
    assert post(client, "/tokenize", content="<bos>a")["tokens"] == [BOS, 97]
    assert post(client, "/tokenize", content="<bos>a", parse_special=False)["tokens"] == [*b"<bos>a"]
    assert post(client, "/detokenize", tokens=[BOS, 97])["content"] == "<bos>a"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": 5}, "content"),
        ("/tokenize", {"content": "a", "with_pieces": 1}, "with_pieces"),
        ("/tokenize", {"content": "a", "other": 1}, "other"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [1 << 40]}, "tokens"),
        ("/detokenize", {"tokens": "abc"}, "tokens"),
        ("/apply-template", {}, "messages"),
        ("/apply-template", {"messages": [{"role": "user", "content": "a"}], "add_generation_prompt": "no"}, None),
    ],
)
def test_wrong_bodies_are_refused(client, path, body, param):
    error = post(client, path, 400, **body)["error"]
    assert error["type"] == "invalid_request_error" and param in (None, error["param"])


def test_the_template_is_applied(client, model):
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    messages.append({"role": "user", "content": [{"type": "text", "text": "Bye"}]})
    prompt = post(client, "/apply-template", messages=messages)["prompt"]
    assert prompt == model.render([*messages[:2], {"role": "user", "content": "Bye"}])
    shorter = post(client, "/apply-template", messages=messages, add_generation_prompt=False)["prompt"]
    assert prompt.startswith(shorter) and len(shorter) < len(prompt)


def test_a_model_without_the_tokens_cannot_infill(client):
    error = post(client, "/infill", 501, input_prefix="a", input_suffix="b")["error"]
    assert error["type"] == "not_supported_error"


class HoleTokenizer(ByteTokenizer):
    """Names of control characters that models for code have."""

    names = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>")

    def __init__(self, count=5):
        self.ids = dict(zip(self.names[:count], range(1, 6)))

    def token_id(self, text):
        return self.ids.get(text)


def infilling(fake, count):
    model = fake_model(Continuation({"\1a\2b\3": "mid"}))
    model.tokenizer, model.template = HoleTokenizer(count), MarkerTemplate()
    return fake(model)


def test_a_hole_is_filled(fake):
    client = infilling(fake, 3)
    answer = post(client, "/infill", input_prefix="a", input_suffix="b", n_predict=8)
    assert (answer["content"], answer["stop_type"]) == ("mid", "eos")
    assert post(client, "/infill", input_prefix="a", input_suffix="b", prompt="m", n_predict=8)["content"] == "id"
    stream = client.post("/infill", json={"input_prefix": "a", "input_suffix": "b", "stream": True})
    assert "".join(one["content"] for one in events_of(stream.text)) == "mid"


def test_other_files_come_before_a_hole(fake):
    extra = [{"filename": "f.py", "text": "x"}, {"text": "y"}]
    body = {"input_prefix": "a", "input_suffix": "b", "input_extra": extra, "n_predict": 1}
    assert post(infilling(fake, 5), "/infill", **body)["prompt"] == (
        "<bos>\4myproject\n\5f.py\nx\5tmp\ny\5filename\n\1a\2b\3"
    )
    assert post(infilling(fake, 3), "/infill", **body)["prompt"] == "<bos>xy\1a\2b\3"


@pytest.mark.parametrize("body", [{"input_prefix": 1}, {"input_extra": "x"}, {"input_extra": [{"filename": "f"}]}])
def test_wrong_parts_of_a_hole_are_refused(fake, body):
    assert post(infilling(fake, 5), "/infill", 400, **body)["error"]["param"].startswith(next(iter(body)))


def test_props_describe_the_model(client, model):
    answer = client.get("/props").json()
    settings = answer["default_generation_settings"]
    assert settings["n_ctx"] == settings["params"]["n_ctx"] == model.context_size
    assert settings["params"]["temperature"] == 0.0 and settings["params"]["n_predict"] == -1
    assert (answer["total_slots"], answer["model_path"]) == (4, str(model.path))
    assert answer["chat_template"] == model.template.source
    assert answer["modalities"] == {"vision": False, "audio": False}


def test_models_in_memory_have_a_meta(client, model):
    assert client.get("/models").json()["data"][0]["meta"] is None
    post(client, "/tokenize", content="a")
    answer = client.get("/v1/models").json()["data"][0]
    assert answer["id"] == model.name and answer["meta"]["n_vocab"] == model.vocab_size


def test_slots_that_run_nothing(client, model):
    assert [slot["is_processing"] for slot in client.get("/slots").json()] == [False] * 4
    answer = post(client, "/completion", prompt="a", n_predict=2, id_slot=2)
    assert answer["id_slot"] == 2
    assert post(client, "/completion", prompt="a", n_predict=2, id_slot=99)["id_slot"] in range(4)
    slot = client.get("/slots?fail_on_no_slot=1").json()[2]
    assert (slot["id"], slot["id_task"], slot["n_ctx"]) == (2, 0, model.context_size)


def test_a_conversation_is_saved_and_restored(client, model, tmp_path):
    first = post(client, "/completion", prompt=PROMPT, n_predict=20, id_slot=1, ignore_eos=True)
    saved = post(client, "/slots/1?action=save", filename="tale.bin")
    assert saved["id_slot"] == 1 and saved["filename"] == "tale.bin"
    # The last token of a reply has not run.
    assert saved["n_saved"] == first["tokens_evaluated"] + 19
    assert saved["n_written"] == (tmp_path / "tale.bin").stat().st_size > 0
    assert saved["timings"]["save_ms"] > 0
    with tinychat.load("demo") as other:
        server = new_server(other, options=ServerOptions(slot_folder=tmp_path))
        with in_process(server) as fresh:
            restored = post(fresh, "/slots/3?action=restore", filename="tale.bin")
            assert (restored["n_restored"], restored["n_read"]) == (saved["n_saved"], saved["n_written"])
            again = post(fresh, "/completion", prompt=PROMPT, n_predict=20, ignore_eos=True)
    assert again["tokens_cached"] == again["tokens_evaluated"] - 1
    assert again["content"] == first["content"]


def test_what_a_slot_has_run_is_erased(client, model):
    begin = "A cat sat under a tree and looked at the birds all day. " * 8
    ends = ["The sun was warm. " * 8, "It was very cold. " * 8]
    for number, end in enumerate(ends):
        post(client, "/completion", prompt=begin + end, n_predict=4, id_slot=number)
    size = post(client, "/completion", prompt=begin + ends[1], n_predict=4, id_slot=1)["tokens_evaluated"]
    assert client.post("/slots/1?action=erase").json()["n_erased"] >= size
    again = post(client, "/completion", prompt=begin + ends[1], n_predict=4, id_slot=1)
    # What the other text begins with stays.
    assert 64 <= again["tokens_cached"] < len(model.encode(begin)) + 4
    assert [client.post(f"/slots/{number}?action=erase").status_code for number in (0, 1)] == [200, 200]
    assert post(client, "/completion", prompt=begin + ends[1], n_predict=4)["tokens_cached"] < 64
    assert client.post("/slots/1?action=erase").json()["n_erased"] == 0


@pytest.mark.parametrize(
    ("path", "body", "status", "word"),
    [
        ("/slots/9?action=save", {"filename": "a"}, 404, "slot 9"),
        ("/slots/x?action=save", {"filename": "a"}, 404, "slot x"),
        ("/slots/0?action=burn", {}, 400, "action"),
        ("/slots/0", {}, 400, "action"),
        ("/slots/0?action=save", {}, 400, "filename"),
        ("/slots/0?action=save", {"filename": "../a"}, 400, "filename"),
        ("/slots/0?action=save", {"filename": "/etc/passwd"}, 400, "filename"),
        ("/slots/0?action=save", {"filename": ".hidden"}, 400, "filename"),
        ("/slots/3?action=save", {"filename": "a"}, 400, "nothing to save"),
        ("/slots/0?action=restore", {"filename": "missing"}, 400, "nothing that this model can use"),
    ],
)
def test_wrong_actions_on_slots_are_refused(client, tmp_path, path, body, status, word):
    assert word in post(client, path, status, **body)["error"]["message"]
    assert not any(tmp_path.iterdir())


def test_damaged_files_are_refused(client, tmp_path):
    post(client, "/completion", prompt=PROMPT, n_predict=2, id_slot=0)
    post(client, "/slots/0?action=save", filename="a")
    data = bytearray((tmp_path / "a").read_bytes())
    data[-1] ^= 1
    (tmp_path / "a").write_bytes(data)
    post(client, "/slots/0?action=restore", 400, filename="a")


def test_slots_are_not_saved_without_a_folder(model):
    server = new_server(model, parallel=4)
    keep_open(server)
    with in_process(server) as client:
        post(client, "/slots/0?action=save", 501, filename="a")


def test_slots_and_metrics_can_be_switched_off(model):
    server = new_server(model, parallel=4, options=ServerOptions(shows_slots=False, shows_metrics=False))
    keep_open(server)
    with in_process(server) as client:
        for path in ("/slots", "/metrics"):
            assert client.get(path).status_code == 404
        described = client.get("/openapi.json").json()["paths"]
        assert not any(path.startswith(("/slots", "/metrics")) for path in described) and "/health" in described


def test_metrics_count_tokens_under_llama_servers_names(client, model):
    answers = [post(client, "/completion", prompt=PROMPT, n_predict=5) for _ in range(2)]
    client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3})
    post(client, "/completion", 400, prompt=[])
    text = client.get("/metrics").text
    found = dict(re.findall(r"^(\w+:\w+) (\S+)$", text, re.MULTILINE))
    assert int(found["llamacpp:tokens_predicted_total"]) == 13
    assert int(found["tinychat:requests_total"]) == 4 and int(found["tinychat:errors_total"]) == 1
    assert int(found["tinychat:cached_tokens_total"]) >= answers[1]["tokens_cached"]
    assert float(found["llamacpp:predicted_tokens_seconds"]) > 0 and found["llamacpp:requests_processing"] == "0"
    assert int(found["llamacpp:n_tokens_max"]) == answers[0]["tokens_evaluated"] + 5
    # Each metric has one line of help, of type and of value.
    kinds = re.findall(r"^# TYPE (\S+) (counter|gauge)$", text, re.MULTILINE)
    assert sorted(name for name, _ in kinds) == sorted(found)
    assert len(text.splitlines()) == 3 * len(found)


def test_metrics_without_requests_are_whole():
    assert "tokens_predicted_total 0\n" in Metrics().text(requests_processing=0, requests_deferred=0)


def test_chat_completions_have_timings(client):
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
    answer = post(client, "/v1/chat/completions", **body)
    timings, usage = answer["timings"], answer["usage"]
    assert timings["predicted_n"] == usage["completion_tokens"]
    assert timings["cache_n"] + timings["prompt_n"] == usage["prompt_tokens"]
    stream = client.post("/v1/chat/completions", json=body | {"stream": True})
    *_, last, done = events_of(stream.text)
    assert done == "[DONE]" and last["timings"]["predicted_n"] == timings["predicted_n"]
    assert post(client, "/v1/completions", prompt="a", max_tokens=2)["timings"]["predicted_n"] == 2


def test_drafts_are_in_the_timings(client):
    answer = post(client, "/completion", prompt="one two three four " * 12, n_predict=60)
    assert 0 <= answer["timings"].get("draft_n_accepted", 0) <= answer["timings"].get("draft_n", 0)
