"""The page in a browser: what a person does there, at a desk and on a phone."""

import re

import pytest
from browser import (
    CONTROLLED_MODEL,
    chunk,
    find_axe,
    fits,
    last_chunk,
    opened,
    replied,
    say,
    send,
    serious_faults,
    texts,
    until,
    write,
)
from fake_model import Replies, fake_model
from local_server import listening, new_server
from page_texts import CODE, HOSTILE, LINKS, MARKDOWN, SLOW, SLOW_LINES

from tinychat.generate.request import Request

pytestmark = pytest.mark.slow

SIZES = pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
MOST_SECONDS = 5


@pytest.fixture
def controlled(browser, quick):
    """Open the page with a model whose stream the test writes."""
    with opened(browser, quick, script=CONTROLLED_MODEL) as page:
        yield page


@SIZES
def test_a_conversation_from_first_word_to_reload(browser, server, width, height):
    with opened(browser, server.url.removesuffix("/v1"), width, height) as page:
        page.wait_for_selector("#used:has-text('tokens')")
        send(page, "What is the capital of France?")
        first = replied(page)
        assert "Paris" in first
        assert re.search(r"\d+ tokens?, [\d.,]+/s; prompt \d+", page.locator(".stats").last.inner_text())
        assert re.fullmatch(r"\d+ / [\d,]+ tokens", page.locator("#used").inner_text())
        assert page.locator("#live").inner_text().startswith("Reply: ") and fits(page)

        page.click("#open-settings")
        page.wait_for_selector("#settings[open]")
        defaults = {name: page.get_by_label(name).get_attribute("placeholder") for name in ("Temperature", "Seed")}
        assert defaults == {"Temperature": "0", "Seed": "random"}
        page.click("#close-settings")

        page.get_by_role("button", name="Again").click()
        replied(page)
        assert page.locator(".assistant .versions").inner_text() == "\u20392/2\u203a"

        page.focus("#prompt")
        page.keyboard.press("ArrowUp")
        page.get_by_label("Edited message").fill("What does a cow say?")
        page.keyboard.press("Control+Enter")
        replied(page)
        assert texts(page)[0] == "What does a cow say?" and "2/2" in page.locator(".user .versions").inner_text()

        page.get_by_role("button", name="Version before").first.click()
        assert texts(page)[0] == "What is the capital of France?"
        page.get_by_role("button", name="Version before").last.click()
        assert texts(page)[1] == first
        shown = texts(page)

        page.reload()
        page.wait_for_selector("#messages li.assistant")
        assert texts(page) == shown
        assert page.locator("h1").inner_text() == "What is the capital of France?" and fits(page)
        if width < 760:
            assert not page.locator("#sidebar").is_visible()
            page.click("#toggle")
        assert page.locator("#conversations a[aria-current]").inner_text() == "What is the capital of France?"
        assert fits(page)


@SIZES
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_fault(browser, quick, width, height, scheme):
    axe = find_axe()
    with opened(browser, quick, width, height, CONTROLLED_MODEL, color_scheme=scheme) as page:
        assert serious_faults(page, axe) == []
        everything = "\n\n".join([*MARKDOWN, *LINKS, "| a | b |\n|---|--:|\n| 1 | 2 |", "- [x] done"])
        code = "".join(f"\n```{name}\n{text}```\n" for name, (text, _kinds) in CODE.items())
        call = {"index": 0, "id": "1", "function": {"name": "look", "arguments": '{"at": "a"}'}}
        page.set_input_files("#attach-file", {"name": "a.txt", "mimeType": "text/plain", "buffer": b"text\n" * 99})
        say(page, "All", chunk(reasoning_content="Hm."), chunk(content=everything + code), last_chunk())
        say(page, "And a call", chunk(tool_calls=[call]), last_chunk("length"))
        page.get_by_role("button", name="Again").last.click()
        write(page, last_chunk())
        for details in page.locator("main details:visible").all():
            details.locator("summary").click()
        assert fits(page) and serious_faults(page, axe) == []
        if width < 760:
            page.click("#toggle")
            assert serious_faults(page, axe) == []
            page.click("#toggle")
        page.click("#open-settings")
        page.locator("dialog summary").click()
        assert fits(page) and serious_faults(page, axe) == []


@SIZES
def test_a_reply_is_stopped_and_the_next_is_written(browser, width, height):
    model = fake_model(Replies("flood " * 20_000, "Good."), name="endless", context_size=2**20)
    state = new_server(model, defaults=Request(temperature=0.0, loop_stop=False))
    with listening(state) as running, opened(browser, running.url.removesuffix("/v1"), width, height) as page:
        send(page, "Go on")
        until(page, "document.querySelector('.assistant .body')?.innerText.length > 200")
        page.keyboard.press("Escape")
        written = replied(page)
        assert page.locator(".assistant .state").inner_text() == "Stopped."
        assert 200 < len(written) < 100_000 and "about" in page.locator(".stats").last.inner_text()
        page.wait_for_timeout(300)
        assert replied(page) == written and state.admission.running == 0
        send(page, "And now?")
        assert replied(page)
        page.reload()
        page.wait_for_selector("#messages li.assistant")
        assert texts(page)[1] == written


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_of_models_stay_texts(controlled, text):
    call = {"index": 0, "id": "1", "function": {"name": text, "arguments": text}}
    parts = [chunk(content=text[at : at + 3]) for at in range(0, len(text), 3)]
    controlled.set_input_files("#attach-file", {"name": text, "mimeType": "text/plain", "buffer": text.encode()})
    say(controlled, text, chunk(reasoning_content=text), *parts, chunk(tool_calls=[call]), last_chunk())
    assert_harmless(controlled)
    visible = controlled.locator(".assistant .body").inner_text()
    assert visible.strip(), "the text is not shown"
    # Written by another page, which was not as careful: the file is read, and no more.
    with controlled.expect_download() as download:
        controlled.evaluate("document.getElementById('export').click()")
    controlled.set_input_files("#import-file", download.value.path())
    until(controlled, "document.querySelectorAll('#conversations li').length === 2")
    assert_harmless(controlled)
    controlled.reload()
    controlled.wait_for_selector("#messages li.assistant")
    assert_harmless(controlled)
    assert controlled.locator(".assistant .body").inner_text() == visible


def assert_harmless(page):
    """Refuse whatever could run, load or hide: elements, attributes, addresses."""
    assert hostile_parts(page) == [] and page.faults == []
    assert page.evaluate("window.pwned") is None


def hostile_parts(page):
    """Return the elements within what is not ours that are more than text."""
    return page.evaluate("""() => {
        const tags = "script, style, link, meta, base, iframe, object, embed, img, svg, math, video, form, template";
        const inside = [...document.querySelectorAll("#messages *, #conversations *, #title *, #notice *")];
        const isBad = (node) => node.matches(tags)
            || node.getAttributeNames().some((name) => name.startsWith("on") || name === "style" || name === "srcdoc")
            || (node.href !== undefined && !/^(https?:|mailto:)/.test(node.href));
        return inside.filter(isBad).map((node) => node.outerHTML);
    }""")


def test_what_is_hostile_is_seen(controlled):
    for markup in (
        "<img src='data:,' alt=''>",
        "<p onclick='a'></p>",
        "<a href='javascript:a'></a>",
        "<b style='a'></b>",
    ):
        controlled.evaluate("(markup) => (document.getElementById('messages').innerHTML = markup)", markup)
        assert len(hostile_parts(controlled)) == 1
    # The policy of the page is the second line: handlers do not run though they are there.
    controlled.evaluate("document.getElementById('messages').innerHTML = `<img src=x onerror='window.pwned = 1'>`")
    controlled.wait_for_timeout(200)
    assert controlled.evaluate("window.pwned") is None and controlled.faults
    controlled.faults.clear()


def test_markdown_becomes_elements(controlled):
    render = """async (text) => {
        const { markdown } = await import("/page/markdown.js");
        const box = document.createElement("div");
        box.append(...markdown(text));
        return box.innerHTML;
    }"""
    for text, expected in MARKDOWN.items():
        assert controlled.evaluate(render, text) == expected, text
    for text, (address, name) in LINKS.items():
        html = controlled.evaluate(render, text)
        assert re.search(r'<a href="(.*?)" target="_blank" rel="noopener noreferrer nofollow">', html)[1] == address
        assert name in html
    for language, (text, kinds) in CODE.items():
        html = controlled.evaluate(render, f"```{language}\n{text}```")
        assert kinds.split() == sorted({*re.findall(r'"code-(?!bar)(\w+)"', html)}), language


def test_a_text_that_grows_is_shown_as_the_whole_one(controlled):
    code = "".join(f"\n```{name}\n{text}```\n" for name, (text, _kinds) in CODE.items())
    text = "\n\n".join([*MARKDOWN, *LINKS, "| a | b |\n|---|--:|\n| 1 | 2 |\nnot", *HOSTILE]) + code
    differences = controlled.evaluate(
        """async (text) => {
            const { GrowingMarkdown, markdown } = await import("/page/markdown.js");
            const html = (nodes) => {
                const box = document.createElement("div");
                box.append(...nodes);
                return box.innerHTML;
            };
            const found = [];
            for (const step of [1, 3, 7, 40]) {
                const box = document.createElement("div");
                const growing = new GrowingMarkdown(box);
                for (let end = 0; end < text.length + step; end += step) {
                    growing.update(text.slice(0, end));
                    const whole = html(markdown(text.slice(0, end)));
                    if (box.innerHTML === whole) continue;
                    found.push([step, end, box.innerHTML.slice(-300), whole.slice(-300)]);
                }
            }
            return found;
        }""",
        text,
    )
    assert differences[:3] == []


@pytest.mark.parametrize("part", [*SLOW, *SLOW_LINES])
def test_no_text_takes_long(controlled, part):
    seconds = controlled.evaluate(
        """async (part) => {
            const { GrowingMarkdown } = await import("/page/markdown.js");
            const text = part.repeat(Math.ceil(100_000 / part.length));
            const box = document.createElement("div");
            const begin = performance.now();
            for (const tail of ["", "x", "\\n\\nx"]) new GrowingMarkdown(box).update(text + tail);
            document.getElementById("messages").append(box);
            box.getBoundingClientRect();
            return (performance.now() - begin) / 1000;
        }""",
        part,
    )
    assert seconds < MOST_SECONDS
