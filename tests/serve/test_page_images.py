"""Images on the page: how they come, what is sent of them, and that they stay; in a browser."""

import json
from base64 import b64decode

import pytest
from browser import CONTROLLED_MODEL, chunk, find_axe, fits, last_chunk, opened, say, send, serious_faults, until, write
from fake_model import Replies, fake_model
from image_files import picture, picture_url
from local_server import listening, new_server

from tinychat.images.data_url import file_bytes

pytestmark = pytest.mark.slow

SMALL = {"name": "small.png", "mimeType": "image/png", "buffer": file_bytes(picture())}
TWO_MODELS = """
    const fetchModels = window.fetch;
    window.fetch = async (path, options) => {
      if (path !== "v1/models") return fetchModels(path, options);
      const model = (id, ...others) => (
        { id, architecture: { input_modalities: ["text", ...others] }, meta: { n_ctx: 4096 } }
      );
      return new Response(JSON.stringify({ data: [model("seeing", "image"), model("blind")] }));
    };
"""
NO_ROOM = """
    const put = IDBObjectStore.prototype.put;
    IDBObjectStore.prototype.put = function (...values) {
      if (this.name === "images") throw new DOMException("full", "QuotaExceededError");
      return put.apply(this, values);
    };
"""
# A drawn file, given to the page as a person does it.
GIVE = """async ([how, name, width, height, type]) => {
    const canvas = document.createElement("canvas");
    Object.assign(canvas, { width, height });
    canvas.getContext("2d").fillRect(0, 0, width / 2, height);
    const blob = await new Promise((resolve) => canvas.toBlob(resolve, type));
    const data = new DataTransfer();
    data.items.add(new File([blob], name, { type }));
    if (how === "document") {
        data.items.add("a text", "text/plain");
        data.items.add("<b>a text</b>", "text/html");
    }
    const options = { bubbles: true, cancelable: true, dataTransfer: data, clipboardData: data };
    const event = how === "drop" ? new DragEvent("drop", options) : new ClipboardEvent("paste", options);
    document.getElementById("prompt").dispatchEvent(event);
    return event.defaultPrevented;
}"""
SIZE_OF = """async (url) => {
    const image = new Image();
    image.src = url;
    await image.decode();
    return [image.naturalWidth, image.naturalHeight];
}"""
KEPT = """() => new Promise((resolve) => {
    indexedDB.open("tinychat").onsuccess = ({ target }) => {
        const images = target.result.transaction("images").objectStore("images");
        images.count().onsuccess = (counted) => { target.result.close(); resolve(counted.target.result); };
    };
})"""
# What a page of an earlier version has left behind.
EARLIER = """() => new Promise((resolve) => {
    indexedDB.deleteDatabase("tinychat").onsuccess = () => {
        const request = indexedDB.open("tinychat", 1);
        request.onupgradeneeded = () => {
            const heads = request.result.createObjectStore("heads", { keyPath: "id" });
            const whole = request.result.createObjectStore("conversations", { keyPath: "id" });
            const message = { id: "m", parent: "", role: "user", content: "Before", at: 1 };
            const trees = { messages: new Map([["m", message]]), chosen: new Map([["", "m"]]) };
            heads.put({ id: "c", title: "Before", updated: 1 });
            whole.put({ id: "c", title: "Before", created: 1, updated: 1, settings: {}, ...trees });
        };
        request.onsuccess = () => { request.result.close(); resolve(); };
    };
})"""


@pytest.fixture(scope="module")
def seeing():
    model = fake_model(Replies(*["A cat."] * 100), name="seeing", sees_images=True, context_size=4000)
    with listening(new_server(model)) as running:
        # It is loaded: until then nobody knows whether it sees.
        assert running.raw("GET", "/props")[0] == 200
        yield running


@pytest.fixture(scope="module")
def address(seeing):
    return seeing.url.removesuffix("/v1")


@pytest.fixture
def page(browser, address):
    """Open the page of a model that sees, whose stream the test writes."""
    with opened(browser, address, script=CONTROLLED_MODEL) as page:
        page.wait_for_selector("#attach-image:visible")
        yield page


def give(page, how, name, width=8, height=6, kind="image/png"):
    """Let an image be dropped or pasted; return whether the page took it."""
    return page.evaluate(GIVE, [how, name, width, height, kind])


def attach(page, *files):
    page.set_input_files("#attach-image-file", list(files))
    until(page, f"document.querySelectorAll('#files img').length === {len(files)}")


def sent(page):
    """Return the messages of the last request to the model."""
    return page.evaluate("window.sent.at(-1).messages")


def shown(page):
    """Return the names and sizes of the images of messages, once the browser has read them."""
    until(page, "[...document.querySelectorAll('#messages img')].every((image) => image.complete)")
    return page.evaluate(
        "[...document.querySelectorAll('#messages img')].map((image) => [image.alt, image.naturalWidth])"
    )


def notice(page, text):
    until(page, f"document.getElementById('notice').innerText.startsWith({json.dumps(text)})")


def part(url):
    return {"type": "image_url", "image_url": {"url": url}}


SEEN = part(picture_url())


def test_images_come_by_button_drop_and_paste(page):
    attach(page, SMALL)
    assert give(page, "drop", "dropped.png", 20, 10) and give(page, "paste", "pasted.webp", kind="image/webp")
    until(page, "document.querySelectorAll('#files img').length === 3")
    sizes = ["small.png, 3 \u00d7 2", "dropped.png, 20 \u00d7 10", "pasted.webp, 8 \u00d7 6"]
    assert [text.rpartition(" ")[0] for text in page.locator("#files li").all_inner_texts()] == sizes
    page.set_input_files("#attach-file", {"name": "a.txt", "mimeType": "text/plain", "buffer": b"text"})
    until(page, "document.querySelectorAll('#files li').length === 4")
    page.get_by_role("button", name="Remove dropped.png").click()
    say(page, "What?", chunk(content="Images."), last_chunk())
    (message,) = sent(page)
    first, second, text = message["content"]
    # A file that is small is sent as it is.
    assert first == SEEN and second["image_url"]["url"].startswith("data:image/webp;base64,")
    assert text == {"type": "text", "text": "a.txt:\n```txt\ntext\n```\n\nWhat?"}
    assert shown(page) == [["small.png", 3], ["pasted.webp", 8]]
    above = "document.querySelector('#messages img').getBoundingClientRect().bottom"
    assert page.evaluate(f"{above} <= document.querySelector('.user .body').getBoundingClientRect().top")


def test_images_stay_through_edits_other_replies_and_reload(page):
    attach(page, SMALL)
    say(page, "What?", chunk(content="A."), last_chunk())
    page.evaluate("delete window.push")
    page.get_by_role("button", name="Edit").click()
    page.get_by_label("Edited message").fill("And this?")
    page.keyboard.press("Control+Enter")
    write(page, chunk(content="B."), last_chunk())
    assert sent(page) == [{"role": "user", "content": [SEEN, {"type": "text", "text": "And this?"}]}]
    page.evaluate("delete window.push")
    page.get_by_role("button", name="Again").click()
    write(page, chunk(content="C."), last_chunk())
    assert sent(page)[0]["content"][0] == SEEN
    page.reload()
    page.wait_for_selector("#messages li.assistant")
    assert shown(page) == [["small.png", 3]] and page.evaluate(KEPT) == 1
    say(page, "Sure?", last_chunk())
    assert [message["content"] for message in sent(page)][::2] == [
        [SEEN, {"type": "text", "text": "And this?"}],
        "Sure?",
    ]


def test_an_image_needs_no_text(page):
    attach(page, SMALL)
    say(page, "", chunk(content="A."), last_chunk())
    assert sent(page) == [{"role": "user", "content": [SEEN]}]
    assert page.locator("h1").inner_text() == "small.png"


@pytest.mark.parametrize(
    ("kind", "size", "expected"),
    [
        ("image/jpeg", (3000, 1500), ("image/jpeg", [2048, 1024])),
        ("image/png", (100, 4096), ("image/png", [50, 2048])),
        ("image/jpeg", (2048, 9), ("image/jpeg", [2048, 9])),
    ],
)
def test_a_large_image_is_reduced(page, kind, size, expected):
    give(page, "drop", "large", *size, kind)
    until(page, "document.querySelectorAll('#files img').length === 1")
    say(page, "What?", last_chunk())
    url = sent(page)[0]["content"][0]["image_url"]["url"]
    assert (url.partition(";")[0].removeprefix("data:"), page.evaluate(SIZE_OF, url)) == expected
    assert shown(page)[0][1] == expected[1][0] and fits(page)


def test_a_file_that_weighs_much_is_written_anew(page):
    # What stands behind the end of a PNG file is read by nobody.
    attach(page, SMALL | {"buffer": SMALL["buffer"] + bytes(5 << 20)})
    say(page, "What?", last_chunk())
    url = sent(page)[0]["content"][0]["image_url"]["url"]
    assert len(b64decode(url.partition(",")[2])) < 1000 and page.evaluate(SIZE_OF, url) == [3, 2]


def test_what_is_no_image_is_named(page):
    page.set_input_files("#attach-image-file", [SMALL | {"name": "b.png", "buffer": b"x"}, SMALL])
    notice(page, "b.png: not an image that this browser can read")
    until(page, "document.querySelectorAll('#files img').length === 1")
    # A drawing is a text.
    page.set_input_files("#attach-file", {"name": "c.svg", "mimeType": "image/svg+xml", "buffer": b"<svg/>"})
    until(page, "document.querySelectorAll('#files li').length === 2")
    assert page.locator("#files img").count() == 1


def test_the_picture_beside_a_copied_text_is_left_out(page):
    assert not give(page, "document", "picture.png")
    page.wait_for_timeout(200)
    assert page.locator("#files li").count() == 0


@pytest.fixture
def blind():
    with listening(new_server(fake_model(Replies("Good.", "Good."), name="blind"))) as running:
        yield running


def test_a_model_that_reads_text_alone_has_no_button(browser, blind):
    assert blind.raw("GET", "/props")[0] == 200
    with opened(browser, blind.url.removesuffix("/v1")) as page:
        until(page, "document.getElementById('used').innerText.endsWith('tokens')")
        assert give(page, "drop", "cat.png")
        notice(page, "cat.png: blind reads text alone")
        assert not page.locator("#attach-image").is_visible() and page.locator("#files li").count() == 0


def test_what_is_not_known_yet_the_server_tells(browser, blind):
    with opened(browser, blind.url.removesuffix("/v1")) as page:
        page.wait_for_selector("#attach-image:visible")
        attach(page, SMALL)
        send(page, "What?")
        page.wait_for_selector(".state.problem")
        assert page.locator(".state.problem").inner_text().endswith("this model reads text alone")
        page.wait_for_selector("#attach-image", state="hidden")
        page.get_by_role("button", name="Again").click()
        until(page, "document.querySelector('.assistant .body')?.innerText === 'Good.'")
        ids = blind.state.pool.loaded[0].model.sequence.ids
        assert bytes(one for one in ids if one < 256).startswith(b"[image small.png] What?")
        # A status that the browser logs.
        assert all("400" in fault for fault in page.faults)
        page.faults.clear()


def test_a_model_that_reads_text_alone_gets_the_names_of_images(browser, quick):
    with opened(browser, quick, script=CONTROLLED_MODEL + TWO_MODELS) as page:
        page.wait_for_selector("#attach-image:visible")
        attach(page, SMALL)
        say(page, "What?", chunk(content="A."), last_chunk())
        attach(page, SMALL | {"name": "other.png"})
        page.select_option("#model", "blind")
        assert not page.locator("#attach-image").is_visible()
        send(page, "And?")
        notice(page, "other.png: blind reads text alone")
        assert page.locator("#prompt").input_value() == "And?" and len(sent(page)) == 1
        page.get_by_role("button", name="Remove other.png").click()
        say(page, "", chunk(content="B."), last_chunk())
        assert [message["content"] for message in sent(page)] == ["[image small.png] What?", "A.", "And?"]
        page.select_option("#model", "seeing")
        say(page, "So?", last_chunk())
        assert sent(page)[0]["content"][0] == SEEN


def test_a_result_of_a_call_is_a_text_and_takes_files(page):
    call = {"index": 0, "id": "c", "function": {"name": "look", "arguments": "{}"}}
    say(page, "Look", chunk(tool_calls=[call]), last_chunk("tool_calls"))
    assert not page.locator("#attach-image").is_visible()
    give(page, "drop", "cat.png")
    notice(page, "cat.png: the result of a call is a text")
    page.set_input_files("#attach-file", {"name": "a.txt", "mimeType": "text/plain", "buffer": b"rain"})
    until(page, "document.querySelectorAll('#files li').length === 1")
    say(page, "", last_chunk())
    assert sent(page)[-1] == {"role": "tool", "tool_call_id": "c", "content": "a.txt:\n```txt\nrain\n```"}
    assert page.locator("#attach-image").is_visible()


def test_images_that_cannot_be_kept_are_named(browser, address):
    with opened(browser, address, script=CONTROLLED_MODEL + NO_ROOM) as page:
        page.wait_for_selector("#attach-image:visible")
        attach(page, SMALL)
        say(page, "What?", chunk(content="A."), last_chunk())
        notice(page, "Saved without its images: the browser gives no more room: delete conversations, or export them.")
        assert sent(page)[0]["content"][0] == SEEN
        page.reload()
        page.wait_for_selector("#messages li.assistant")
        assert page.locator(".user .attached").inner_text() == "[image small.png] is not kept in this browser."
        say(page, "Sure?", last_chunk())
        assert sent(page)[0]["content"] == "[image small.png] What?"


def test_images_go_and_come_back_with_their_conversation(page, tmp_path):
    attach(page, SMALL)
    say(page, "What?", chunk(content="A."), last_chunk())
    with page.expect_download() as download:
        page.click("#export-all")
    download.value.save_as(tmp_path / "all.json")
    page.get_by_role("button", name="Delete What?").click()
    until(page, "document.querySelectorAll('#conversations li').length === 0")
    assert page.evaluate(KEPT) == 0
    page.get_by_role("button", name="Undo").click()
    until(page, "document.querySelectorAll('#conversations li').length === 1")
    assert page.evaluate(KEPT) == 1
    page.set_input_files("#import-file", tmp_path / "all.json")
    until(page, "document.querySelectorAll('#conversations li').length === 2")
    page.wait_for_selector("#messages img")
    page.reload()
    page.wait_for_selector("#messages img")
    assert shown(page) == [["small.png", 3]] and page.evaluate(KEPT) == 2


def test_conversations_of_an_earlier_version_are_here(page):
    page.evaluate(EARLIER)
    page.reload()
    page.locator("#conversations a", has_text="Before").click()
    page.wait_for_selector("#messages li.user")
    attach(page, SMALL)
    say(page, "What?", last_chunk())
    until(page, f"({KEPT})().then((kept) => kept === 1)")


def test_the_server_sees_what_the_page_sends(browser, address, seeing):
    pytest.importorskip("PIL")
    with opened(browser, address) as page:
        page.wait_for_selector("#attach-image:visible")
        attach(page, SMALL)
        send(page, "What?")
        until(page, "document.querySelector('.assistant .body')?.innerText === 'A cat.'")
        ids = seeing.state.pool.loaded[0].model.sequence.ids
        assert bytes(one for one in ids if one < 256) == b"()What?A cat."


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_fault(browser, address, width, height, scheme):
    axe = find_axe()
    with opened(browser, address, width, height, CONTROLLED_MODEL, color_scheme=scheme) as page:
        page.wait_for_selector("#attach-image:visible")
        give(page, "drop", "wide.png", 3000, 40)
        give(page, "drop", "tall.png", 40, 3000)
        until(page, "document.querySelectorAll('#files img').length === 2")
        assert fits(page) and serious_faults(page, axe) == []
        say(page, "What?", chunk(content="Two."), last_chunk())
        assert shown(page) == [["wide.png", 2048], ["tall.png", 27]]
        assert fits(page) and serious_faults(page, axe) == []


def test_the_keyboard_attaches_and_removes(page):
    # The browser's own dialog would stand before the page.
    asked = "(event) => { event.preventDefault(); window.asked = event.target.multiple; }"
    page.evaluate(f"document.getElementById('attach-image-file').addEventListener('click', {asked})")
    page.focus("#attach-image")
    page.keyboard.press("Enter")
    until(page, "window.asked === true")
    attach(page, SMALL)
    until(page, "document.activeElement.id === 'prompt'")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    assert page.locator("#files li").count() == 0 and page.evaluate("document.activeElement.id") == "prompt"
