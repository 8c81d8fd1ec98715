"""The parts of the page: thoughts, calls, files, settings, keys, storage; in a browser."""

import json

import pytest
from browser import CONTROLLED_MODEL, chunk, last_chunk, opened, replied, say, send, texts, until, write
from fake_model import Replies, fake_model
from local_server import listening, new_server

from tinychat.serve.guard import Door

pytestmark = pytest.mark.slow

FULL_DISK = """
    const put = IDBObjectStore.prototype.put;
    window.isFull = true;
    IDBObjectStore.prototype.put = function (...values) {
      if (window.isFull) throw new DOMException("full", "QuotaExceededError");
      return put.apply(this, values);
    };
"""

# The first answers are those of a server that has just begun.
LOADING = """
    const fetchLater = window.fetch;
    let health = 0;
    window.fetch = async (path, options) => {
      if (path === "health") return new Response("{}", { status: health++ ? 200 : 503 });
      if (path !== "v1/models") return fetchLater(path, options);
      const architecture = { input_modalities: ["text"] };
      const model = { id: "quick", architecture, meta: health ? { n_ctx: 4096 } : null };
      return new Response(JSON.stringify({ data: [model] }));
    };
"""


@pytest.fixture
def page(browser, quick):
    """Open the page with a model whose stream the test writes."""
    with opened(browser, quick, script=CONTROLLED_MODEL) as page:
        yield page


def sent(page):
    """Return the body of the last request to the model."""
    return page.evaluate("window.sent.at(-1)")


def test_how_far_a_prompt_is_read_is_shown_then_the_text_as_it_comes(page):
    send(page, "Read this")
    progress = {"total": 1200, "processed": 300, "cache": 100, "time_ms": 900.0, "seconds_left": 72.4}
    write(page, {"choices": [{"index": 0, "delta": {}}], "prompt_progress": progress}, ends=False)
    until(page, "document.querySelector('.assistant .state progress')?.value === 300")
    assert (
        page.locator(".assistant .state").inner_text().strip()
        == "Reading the prompt: 300 of 1,200 tokens, 1 min 12 s left"
    )
    for text in ("One", " two", " *three*"):
        write(page, chunk(content=text), ends=False)
        until(page, f"document.querySelector('.assistant .body').innerText.endsWith({text.strip('* ')!r})")
    assert not page.locator(".assistant .state").is_visible()
    write(
        page, last_chunk(predicted_n=3, predicted_per_second=12.34, prompt_n=1100, cache_n=100, prompt_per_second=98.7)
    )
    assert page.locator(".stats").last.inner_text() == "3 tokens, 12.3/s; prompt 1,200, 100 cached, 98.7/s"
    assert page.locator(".assistant em").inner_text() == "three"
    assert sent(page)["stream_options"] == {"include_usage": True} and sent(page)["return_progress"] is True


def test_thoughts_are_folded(page):
    send(page, "Think")
    write(page, chunk(reasoning_content="Let *me* see."), ends=False)
    until(page, "document.querySelector('.assistant .thoughts summary')?.innerText === 'Thinking …'")
    write(page, chunk(content="Yes."), last_chunk())
    assert not page.locator(".assistant .thoughts em").is_visible()
    page.locator(".assistant .thoughts summary").click()
    assert page.locator(".assistant .thoughts em").inner_text() == "me"
    say(page, "And?", chunk(content="No."), last_chunk())
    assert sent(page)["messages"][1] == {"role": "assistant", "content": "Yes.", "reasoning_content": "Let *me* see."}


def test_calls_are_shown_and_their_results_are_sent(page):
    calls = [{"index": at, "id": f"c{at}", "function": {"name": f"look{at}", "arguments": ""}} for at in (0, 1)]
    arguments = [{"index": at, "function": {"arguments": text}} for at in (0, 1) for text in ('{"at"', ': "a"}')]
    deltas = [chunk(tool_calls=[each]) for each in (*calls, *arguments)]
    say(page, "Look", *deltas, last_chunk("tool_calls"))
    assert page.locator(".call").all_inner_texts() == [f'calls look{at}\n{{\n  "at": "a"\n}}' for at in (0, 1)]
    assert page.locator("#prompt").get_attribute("placeholder") == "Result of look0"
    send(page, "rain")
    until(page, "document.getElementById('prompt').placeholder === 'Result of look1'")
    say(page, "sun", chunk(content="Both."), last_chunk())
    user, assistant, *results = sent(page)["messages"]
    assert user == {"role": "user", "content": "Look"}
    assert [call["function"] for call in assistant["tool_calls"]] == [
        {"name": f"look{at}", "arguments": '{"at": "a"}'} for at in (0, 1)
    ]
    assert results == [
        {"role": "tool", "tool_call_id": "c0", "content": "rain"},
        {"role": "tool", "tool_call_id": "c1", "content": "sun"},
    ]
    assert replied(page) == "Both."


def test_text_files_come_by_button_drop_and_paste(page):
    page.set_input_files("#attach-file", {"name": "a.py", "mimeType": "text/x-python", "buffer": b"```\nx = 1\r\n"})
    for kind, name in (("drop", "b.txt"), ("paste", "c.txt")):
        page.evaluate(
            """([kind, name]) => {
                const data = new DataTransfer();
                data.items.add(new File(["of " + kind], name));
                const options = { bubbles: true, cancelable: true, dataTransfer: data, clipboardData: data };
                const event = kind === "drop" ? new DragEvent(kind, options) : new ClipboardEvent(kind, options);
                document.getElementById("prompt").dispatchEvent(event);
            }""",
            [kind, name],
        )
    until(page, "document.querySelectorAll('#files li').length === 3")
    page.set_input_files("#attach-file", {"name": "d.bin", "mimeType": "text/plain", "buffer": b"\xff\xfe\x00"})
    until(page, "document.getElementById('notice').innerText === 'd.bin: not a text in UTF-8'")
    page.get_by_role("button", name="Remove b.txt").click()
    say(page, "What is this?", chunk(content="Files."), last_chunk())
    expected = "a.py:\n````py\n```\nx = 1\n````\n\nc.txt:\n```txt\nof paste\n```\n\nWhat is this?"
    assert sent(page)["messages"] == [{"role": "user", "content": expected}]
    assert page.locator(".file summary").all_inner_texts() == ["a.py, 3 lines", "c.txt, 1 line"]
    # Those of an edited message stay.
    page.get_by_role("button", name="Edit").click()
    page.get_by_label("Edited message").fill("And this?")
    page.evaluate("delete window.push")
    page.keyboard.press("Control+Enter")
    write(page, last_chunk())
    assert sent(page)["messages"][0]["content"] == expected.replace("What is", "And")


def test_settings_are_sent_and_stay_with_the_conversation(page):
    page.click("#open-settings")
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Temperature").fill("0.5")
    page.get_by_label("Seed").fill("7")
    page.get_by_label("Thinking").select_option("none")
    page.get_by_label("Other fields").fill("[1]")
    page.click("#close-settings")
    assert page.locator("#settings-problem").inner_text() == "The other fields are not a JSON object"
    page.get_by_label("Other fields").fill('{"dry_multiplier": 0.8, "stream": false}')
    page.get_by_label("Colours").select_option("dark")
    page.click("#close-settings")
    say(page, "Hi", chunk(content="Hm."), last_chunk())
    body = sent(page)
    assert body["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    known = {"temperature": 0.5, "seed": 7, "reasoning_effort": "none", "dry_multiplier": 0.8, "stream": True}
    assert body | known == body
    page.reload()
    page.wait_for_selector("#messages li.assistant")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.click("#open-settings")
    page.wait_for_selector("#settings[open]")
    assert page.get_by_label("System prompt").input_value() == "Be brief."
    page.get_by_label("Title").fill("A title")
    page.click("#close-settings")
    assert page.locator("h1").inner_text() == "A title"
    page.locator("#conversations a", has_text="A title").wait_for()


def test_the_keyboard_does_all(page):
    page.keyboard.press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.focus("#prompt")
    page.keyboard.type("One")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    page.keyboard.press("Enter")
    write(page, chunk(content="A."), last_chunk())
    assert sent(page)["messages"] == [{"role": "user", "content": "One\ntwo"}]
    page.keyboard.press("ArrowUp")
    assert page.evaluate("document.activeElement.value") == "One\ntwo"
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "prompt" and page.locator(".editor").count() == 0
    page.get_by_role("button", name="Again").focus()
    page.evaluate("delete window.push")
    page.keyboard.press("Enter")
    write(page, chunk(content="B."), last_chunk())
    page.get_by_role("button", name="Version before").focus()
    page.keyboard.press("Enter")
    assert texts(page) == ["One\ntwo", "A."]
    page.keyboard.press("Enter")
    assert texts(page) == ["One\ntwo", "B."], "the focus is not at the other arrow"
    page.keyboard.press("Control+k")
    assert texts(page) == [] and page.evaluate("document.activeElement.id") == "prompt"
    page.keyboard.press("Control+b")
    assert not page.locator("#sidebar").is_visible()
    page.go_back()
    page.wait_for_selector("#messages li.assistant")
    assert texts(page) == ["One\ntwo", "B."]


def test_conversations_are_exported_and_imported(page, tmp_path):
    for question, answer in (("One", "A."), ("Two", "B.")):
        page.keyboard.press("Control+k")
        say(page, question, chunk(content=answer), last_chunk())
    with page.expect_download() as download:
        page.click("#export-all")
    path = tmp_path / "all.json"
    download.value.save_as(path)
    for name in ("Delete One", "Delete Two"):
        page.get_by_role("button", name=name).click()
    until(page, "document.querySelectorAll('#conversations li').length === 0")
    page.set_input_files("#import-file", path)
    until(page, "document.querySelectorAll('#conversations li').length === 2")
    page.locator("#conversations a", has_text="Two").click()
    until(page, "document.querySelector('.assistant .body')?.innerText === 'B.'")
    assert texts(page) == ["Two", "B."]
    # Once more: what is here stays as it is.
    page.set_input_files("#import-file", path)
    until(page, "document.querySelectorAll('#conversations li').length === 4")


def broken_files():
    message = {"id": "a", "parent": "", "role": "user", "content": "x"}
    image = {"id": "i", "name": "a.png", "url": "", "width": 1, "height": 1}
    whole = {"format": "tinychat conversations", "version": 1, "conversations": [{"messages": [message]}]}

    def with_message(*fields):
        return whole | {"conversations": [{"messages": [message | each for each in fields]}]}

    return {
        "not JSON": "the file is not JSON",
        "[]": "the file has no tinychat conversations",
        "null": "the file has no tinychat conversations",
        json.dumps(whole | {"version": 2}): "the file has version 2; this page reads 1",
        json.dumps(whole | {"conversations": [None]}): "conversation 1 has no messages",
        json.dumps(with_message({"parent": "a"})): "conversation 1: message 1 has no parent",
        json.dumps(
            with_message({"parent": "b"}, {"id": "b", "parent": "a"})
        ): "conversation 1: message 1 has no parent",
        json.dumps(with_message({}, {})): "conversation 1: message 2 has the id of another",
        json.dumps(with_message({"role": "system"})): "conversation 1, message 1 has a role that is not known",
        json.dumps(with_message({"content": ["x"]})): "conversation 1, message 1 has no content",
        json.dumps(with_message({"id": "<b>"})): "conversation 1, message 1 has no id or parent",
        json.dumps(with_message({"files": [{"name": "x"}]})): (
            "conversation 1, message 1: a file lacks one of name, text"
        ),
        json.dumps(with_message({"images": [image | {"width": 1.5}]})): (
            "conversation 1, message 1: an image has no id or size"
        ),
        **{
            json.dumps(with_message({"images": [image | {"url": url}]})): (
                "conversation 1, message 1: an image has an address that is none of an image"
            )
            for url in ("https://page.example/a.png", "data:image/svg+xml;base64,aGk=", "data:image/png;base64,a b")
        },
    }


def test_files_that_are_damaged_are_refused(page):
    for text, problem in broken_files().items():
        page.set_input_files("#import-file", {"name": "a.json", "mimeType": "text/plain", "buffer": text.encode()})
        until(page, f"document.getElementById('notice').innerText === {f'a.json is not imported: {problem}.'!r}")
    assert page.locator("#conversations li").count() == 0


def test_a_full_disk_is_said_and_the_conversation_goes_on(browser, quick):
    with opened(browser, quick, script=FULL_DISK) as page:
        send(page, "Hi")
        assert replied(page) == "Good."
        assert page.locator("#notice").inner_text().startswith("Not saved: the browser gives no more room")
        page.evaluate("window.isFull = false")
        send(page, "Again")
        assert replied(page)
        page.locator("#conversations a", has_text="Hi").wait_for()


def test_without_a_database_conversations_last_as_long_as_the_page(browser, quick):
    with opened(browser, quick, script="Object.defineProperty(window, 'indexedDB', { value: undefined });") as page:
        assert page.locator("#notice").inner_text().startswith("This browser stores nothing")
        send(page, "Hi")
        assert replied(page) == "Good."
        page.locator("#conversations a", has_text="Hi").wait_for()


def test_a_deletion_is_undone(page):
    say(page, "Hi", chunk(content="A."), last_chunk())
    page.get_by_role("button", name="Delete Hi").click()
    until(page, "document.querySelectorAll('#conversations li').length === 0")
    assert texts(page) == []
    page.get_by_role("button", name="Undo").click()
    page.locator("#conversations a", has_text="Hi").click()
    page.wait_for_selector("#messages li.assistant")
    assert texts(page) == ["Hi", "A."]


def test_a_reply_goes_on_while_another_conversation_is_read(page):
    send(page, "One")
    write(page, chunk(content="A"), ends=False)
    page.keyboard.press("Control+k")
    assert page.locator("#send").is_visible() and texts(page) == []
    page.evaluate("() => { window.push1 = window.push; window.end1 = window.end; }")
    say(page, "Two", chunk(content="B."), last_chunk())
    page.evaluate("(chunk) => window.push1(chunk)", chunk(content=" and more."))
    page.locator("#conversations a", has_text="One").click()
    until(page, "document.querySelector('.assistant .body')?.innerText === 'A and more.'")
    assert page.locator("#stop").is_visible()
    page.evaluate("window.end1()")
    page.wait_for_selector("#send:visible")
    assert texts(page) == ["One", "A and more."]


def test_another_tab_sees_what_is_written(browser, quick):
    with opened(browser, quick) as page:
        send(page, "Hi")
        replied(page)
        url, before = page.url, page.faults
        other = page.context.new_page()
        other.goto(url)
        other.wait_for_selector("#messages li.assistant")
        send(other, "From here")
        replied(other)
        until(page, "document.querySelectorAll('#messages li').length === 4")
        assert texts(page) == texts(other)
        # The other tab is no window of the page's.
        before.clear()


def test_a_reply_that_fails_says_why_and_is_replaced(browser, quick):
    with opened(browser, quick) as page:
        page.click("#open-settings")
        page.get_by_label("Other fields").fill('{"no_such_field": 1}')
        page.click("#close-settings")
        send(page, "Hi")
        replied(page)
        assert "no_such_field" in page.locator(".state.problem").inner_text()
        page.click("#open-settings")
        page.get_by_label("Other fields").fill("")
        page.click("#close-settings")
        page.get_by_role("button", name="Again").click()
        until(page, "document.querySelector('.assistant .body')?.innerText === 'Good.'")
        assert page.locator(".versions").count() == 0
        # A status that the browser logs.
        assert all("400" in fault for fault in page.faults)
        page.faults.clear()


def test_a_stream_that_breaks_off_is_said(page):
    send(page, "Hi")
    write(page, chunk(content="Half"), {"error": {"message": "the server is ending"}}, ends=False)
    page.wait_for_selector(".state.problem")
    assert (replied(page), page.locator(".assistant .state").inner_text()) == ("Half", "the server is ending")


def test_a_server_with_keys_asks_for_one(browser):
    state = new_server(fake_model(Replies(*["Good."] * 100), name="quick"))
    with (
        listening(state, Door(keys=("secret",))) as running,
        opened(browser, running.url.removesuffix("/v1")) as page,
    ):
        page.wait_for_selector("#key:visible")
        page.fill("#key-input", "wrong")
        page.keyboard.press("Enter")
        until(page, "document.getElementById('key-problem').innerText === 'The server does not take this key.'")
        page.fill("#key-input", "secret")
        page.keyboard.press("Enter")
        page.wait_for_selector("#model option", state="attached")
        page.reload()
        send(page, "Hi")
        assert replied(page) == "Good."
        assert page.evaluate("[localStorage.length, Object.values(sessionStorage)]") == [0, ["secret"]]
        assert all("401" in fault for fault in page.faults), page.faults
        page.faults.clear()


def test_a_keyboard_on_the_screen_writes_lines(browser, quick):
    with opened(browser, quick, 390, 844, has_touch=True, is_mobile=True) as page:
        page.tap("#prompt")
        page.keyboard.type("One")
        page.keyboard.press("Enter")
        page.keyboard.type("two")
        assert texts(page) == []
        page.tap("#send")
        assert replied(page) == "Good." and texts(page)[0] == "One\ntwo"


def test_a_server_that_loads_its_model_is_asked_again(browser, quick):
    with opened(browser, quick, script=LOADING) as page:
        until(page, "document.getElementById('notice').innerText === 'The server is loading the model.'")
        until(page, "document.getElementById('used').innerText === '0 / 4,096 tokens'")


def test_a_reply_that_is_stopped_before_it_began_is_replaced(page):
    send(page, "Hi")
    page.wait_for_selector("#stop:visible")
    page.click("#stop")
    assert replied(page) == "" and page.locator(".assistant .state").inner_text() == "Stopped."
    page.evaluate("delete window.push")
    page.get_by_role("button", name="Again").click()
    write(page, chunk(content="A."), last_chunk())
    assert texts(page) == ["Hi", "A."] and page.locator(".versions").count() == 0
