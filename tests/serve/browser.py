"""What tests do with the page in a browser: Chromium, driven by playwright and judged by axe-core, if they are here."""

import importlib.util
import os
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

HOW = "CONTRIBUTING.md says how to get it"
_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
# Faults that hinder people; axe-core's lesser ones are advice.
_SERIOUS = ("serious", "critical")
# What the page sends to the model is kept, and the test writes the answer: window.push(chunk) and window.end().
CONTROLLED_MODEL = """
    window.sent = [];
    const fetchReally = window.fetch;
    window.fetch = async (path, options) => {
      if (!String(path).endsWith("chat/completions")) return fetchReally(path, options);
      window.sent.push(JSON.parse(options.body));
      const { readable, writable } = new TransformStream();
      const writer = writable.getWriter();
      const write = (text) => writer.write(new TextEncoder().encode(text)).catch(() => {});
      options.signal.addEventListener("abort", () => writer.abort(options.signal.reason));
      window.push = (chunk) => write(`data: ${JSON.stringify(chunk)}\\n\\n`);
      window.end = () => { write("data: [DONE]\\n\\n"); writer.close(); };
      return new Response(readable);
    };
"""


def find_browser():
    """Return the program of a browser; skip the test if there is none."""
    found = os.environ.get("TINYCHAT_TEST_CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        pytest.skip(f"there is no Chromium: {HOW}")
    return found


def find_axe():
    """Return the text of axe-core, which runs in the page; skip the test if it is not here."""
    spec = importlib.util.find_spec("axe_playwright_python")
    if spec is None or spec.origin is None:
        pytest.skip(f"axe-playwright-python is not installed: {HOW}")
    return (Path(spec.origin).parent / "axe.min.js").read_text(encoding="utf-8")


@contextmanager
def opened(browser, url, width=1280, height=800, script="", **options):
    """Open the page at an address; no error of a script, no dialog and no request to elsewhere may occur."""
    context = browser.new_context(viewport={"width": width, "height": height}, **options)
    faults, page = [], context.new_page()
    page.set_default_timeout(20_000)
    page.on("pageerror", lambda error: faults.append(f"error: {error}"))
    page.on("dialog", lambda dialog: (faults.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    # A browser logs a status, too: 503 is that of a model that is being loaded.
    is_fault = lambda line: line.type == "error" and "status of 503" not in line.text  # noqa: E731
    page.on("console", lambda line: is_fault(line) and faults.append(f"console: {line.text}"))
    # Whatever leaves this server would be seen, were it let out.
    outside = lambda request: not request.url.startswith((url, "blob:", "data:"))  # noqa: E731
    context.on("request", lambda request: outside(request) and faults.append(f"request: {request.url}"))
    context.on("page", lambda other: faults.append(f"window: {other.url}"))
    page.faults = faults
    if script:
        page.add_init_script(script)
    try:
        page.goto(url + "/")
        yield page
        assert not faults, "; ".join(faults)
    finally:
        context.close()


def serious_faults(page, axe):
    """Return what axe-core finds, each as its rule and the elements."""
    page.evaluate(axe + "; 0")
    found = page.evaluate("axe.run().then((result) => result.violations)")
    return [
        f"{each['id']}: {[node['target'] for node in each['nodes']]}" for each in found if each["impact"] in _SERIOUS
    ]


def until(page, expression):
    """Wait until an expression holds; the page's policy lets no text become code, as playwright's own function does."""
    for _ in range(400):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never: {expression}")


def send(page, text):
    """Type a message and send it, by keyboard."""
    page.focus("#prompt")
    page.keyboard.type(text)
    page.keyboard.press("Enter")


def replied(page):
    """Wait until no reply is written; return the text of the last one."""
    page.wait_for_selector("#send:visible")
    return page.locator("#messages > li.assistant .body").last.inner_text()


def texts(page):
    """Return the texts of the messages that are shown."""
    return page.locator("#messages > li .body").all_inner_texts()


def fits(page):
    """Return whether nothing is wider than the window."""
    return page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")


def chunk(**delta):
    """Return a chunk of a chat completion."""
    return {"model": "demo", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def last_chunk(reason="stop", **timings):
    """Return the chunk that ends a choice."""
    known = {"cache_n": 0, "prompt_n": 0, "predicted_n": 0, "prompt_per_second": 0.0, "predicted_per_second": 0.0}
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "timings": known | timings}


def write(page, *chunks, ends=True):
    """Let the model write chunks."""
    until(page, "window.push !== undefined")
    for each in chunks:
        page.evaluate("(chunk) => window.push(chunk)", each)
    if ends:
        page.evaluate("window.end()")
        page.wait_for_selector("#send:visible")


def say(page, text, *chunks):
    """Send a message, and let the model write the answer."""
    page.evaluate("delete window.push")
    send(page, text)
    write(page, *chunks)
