"""Images in each protocol, for a model that sees and for one that does not."""

import pytest
from fake_model import Replies, fake_model
from image_files import picture, picture_base64, picture_url
from local_server import listening, new_server

pytest.importorskip("PIL")

from tinychat.client.api import Api
from tinychat.client.chat_model import RemoteChatModel
from tinychat.client.remote_model import RemoteModel
from tinychat.conversation.attachments import message_with
from tinychat.conversation.conversation import Chat
from tinychat.errors import ServerError
from tinychat.serve import bodies

URL, DATA = picture_url(), picture_base64()
PART = {"type": "image_url", "image_url": {"url": URL, "detail": "high"}}
TEXT = {"type": "text", "text": "What?"}
BLOCK = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}}
ITEM = {"role": "user", "content": [{"type": "input_image", "image_url": URL, "detail": "auto"}]}
REQUESTS = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": [PART, TEXT]}]},
    "/v1/responses": {
        "input": [{"role": "user", "content": [*ITEM["content"], {"type": "input_text", "text": "What?"}]}]
    },
    "/v1/messages": {"messages": [{"role": "user", "content": [BLOCK, TEXT]}], "max_tokens": 9},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": [BLOCK, TEXT]}], "max_tokens": 9},
    "/api/chat": {"messages": [{"role": "user", "content": "What?", "images": [DATA]}], "stream": False},
    "/api/generate": {"prompt": "What?", "images": [DATA], "stream": False},
    "/apply-template": {"messages": [{"role": "user", "content": [PART, TEXT]}], "return_tokens": True},
}
COUNTED = ("/v1/messages/count_tokens", "/apply-template")


def served(sees_images):
    return listening(new_server(fake_model(Replies(*["A cat."] * 100), sees_images=sees_images, context_size=4000)))


@pytest.fixture(scope="module")
def seeing():
    with served(True) as running:
        yield running


@pytest.fixture(scope="module")
def blind():
    with served(False) as running:
        yield running


def post(server, path, body):
    return server.post(path, {"model": "fake", **body})


@pytest.mark.parametrize("path", REQUESTS)
def test_a_model_that_sees_gets_the_image(seeing, path):
    status, answer = post(seeing, path, REQUESTS[path])
    assert status == 200, answer
    if path in COUNTED:
        ids = answer.get("tokens", range(answer.get("input_tokens", 0)))
        assert len(ids) == len("()What?") + 3
        return
    assert "A cat." in str(answer)
    ids = seeing.state.pool.loaded[0].model.sequence.ids
    assert bytes(one for one in ids if one < 256) == b"()What?A cat."


@pytest.mark.parametrize("path", REQUESTS)
def test_a_model_that_sees_none_refuses_in_the_form_of_the_api(blind, path):
    status, answer = post(blind, path, REQUESTS[path])
    error = answer["error"] if path.startswith("/api") else answer["error"]["message"]
    assert status == 400 and "\n" not in error
    assert error.endswith("must be left out: this model reads text alone")
    assert path.startswith("/v1/messages") == (answer.get("type") == "error")


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
def test_the_detail_is_checked(seeing, path):
    part = {"type": "image_url", "image_url": {"url": URL, "detail": "tiny"}}
    if path == "/v1/responses":
        part = {"type": "input_image", "image_url": URL, "detail": "tiny"}
    key = "input" if path == "/v1/responses" else "messages"
    status, answer = post(seeing, path, {key: [{"role": "user", "content": [part]}]})
    assert status == 400 and "detail must be auto, low or high" in answer["error"]["message"]


def test_images_of_a_response_go_on(seeing):
    first = post(seeing, "/v1/responses", REQUESTS["/v1/responses"])[1]
    asked = {"input": "Sure?", "previous_response_id": first["id"]}
    assert post(seeing, "/v1/responses", asked)[0] == 200
    ids = seeing.state.pool.loaded[0].model.sequence.ids
    assert bytes(one for one in ids if one < 256) == b"()What?A cat.Sure?A cat."
    items = seeing.raw("GET", f"/v1/responses/{first['id']}/input_items")[1]
    assert URL.encode() in items


def changed(path, **fields):
    return {**REQUESTS[path], **fields}


def asking(content):
    return {"messages": [{"role": "user", "content": content}]}


@pytest.mark.parametrize(
    ("path", "body", "problem"),
    [
        ("/v1/chat/completions", asking([PART | {"image_url": "http://x/cat.png"}]), "addresses are not fetched"),
        ("/v1/chat/completions", asking([{"type": "image", "image": "/etc/passwd"}]), "must be a data: URL"),
        ("/v1/chat/completions", asking([{"type": "input_audio", "input_audio": {}}]), "must be a text or an image"),
        (
            "/v1/responses",
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
            "image_url",
        ),
        (
            "/v1/responses",
            {"input": [{"role": "assistant", "content": ITEM["content"]}]},
            "only messages of the user",
        ),
        ("/v1/messages", asking([BLOCK | {"source": {"type": "url", "url": "http://x"}}]), "[0].source must be"),
        ("/v1/messages", asking([BLOCK | {"source": BLOCK["source"] | {"data": "aGk="}}]), "not an image of a known"),
        ("/api/chat", {"messages": [{"role": "user", "content": "", "images": ["/etc/passwd"]}]}, "images[0] is not"),
        ("/api/generate", changed("/api/generate", raw=True), "images cannot be given beside raw"),
        ("/api/generate", changed("/api/generate", context=[1, 2]), "images cannot be given beside raw"),
        ("/api/generate", changed("/api/generate", images="aGk="), "images must be a list"),
    ],
)
def test_what_is_no_image_is_named(seeing, path, body, problem):
    status, answer = post(seeing, path, {"max_tokens": 5, **body} if path == "/v1/messages" else body)
    assert (status, problem in str(answer["error"])) == (400, True), answer


def test_texts_between_images_stay_in_their_order(seeing):
    other = BLOCK | {"source": BLOCK["source"] | {"data": picture_base64(1)}}
    blocks = [{"type": "text", "text": one} for one in "abc"]
    body = asking([*blocks[:2], BLOCK, blocks[2], other]) | {"max_tokens": 5}
    assert post(seeing, "/v1/messages", body)[0] == 200
    ids = seeing.state.pool.loaded[0].model.sequence.ids
    assert bytes(one for one in ids if one < 256).startswith(b"a\nb()c()")


def test_generated_context_is_of_texts_alone(seeing):
    assert "context" not in post(seeing, "/api/generate", REQUESTS["/api/generate"])[1]
    assert "context" in post(seeing, "/api/generate", {"prompt": "Hi", "stream": False})[1]


@pytest.mark.parametrize("sees_images", [True, False])
def test_clients_are_told_whether_the_model_sees(seeing, blind, sees_images):
    server = seeing if sees_images else blind
    props = server.state and Api(server.url).get("/props")
    assert props["modalities"] == {"vision": sees_images, "audio": False}
    (listed,) = Api(server.url).get("/models")["data"]
    assert ("image" in listed["architecture"]["input_modalities"]) == sees_images
    assert ("vision" in post(server, "/api/show", {})[1]["capabilities"]) == sees_images


def test_a_body_may_have_several_photos():
    # A photo of a phone has up to 12 MB, which are 16 in base64.
    assert bodies.MOST_BYTES >= 3 * 16 << 20


def test_one_shots_send_their_images(seeing, blind):
    messages = [message_with((), [picture("cat.png")], "What?").as_dict()]
    assert RemoteModel(Api(seeing.url)).reply(messages, {}).to_end().text == "A cat."
    with pytest.raises(ServerError, match="this model reads text alone"):
        RemoteModel(Api(blind.url)).reply(messages, {}).to_end()


def test_a_chat_with_a_server_sends_its_images(seeing, blind):
    model = RemoteChatModel(Api(seeing.url))
    assert model.sees_images and not RemoteChatModel(Api(blind.url)).sees_images
    chat = Chat(model, temperature=0.0)
    assert chat.say("What?", [picture("cat.png")]) == "A cat."
    ids = seeing.state.pool.loaded[0].model.sequence.ids
    assert bytes(one for one in ids if one < 256) == b"()What?A cat."
    assert model.render([chat.messages[0].as_dict()])
