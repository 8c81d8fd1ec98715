"""What the tests of the server share: one that answers with the demo model."""

import pytest

pytest.importorskip("starlette", reason="the server needs the extra `serve`")
pytest.importorskip("uvicorn", reason="the server needs the extra `serve`")

from browser import HOW, find_browser
from fake_model import Replies, fake_model
from local_server import demo, listening, new_server, serving


@pytest.fixture(scope="package")
def server(kernel_cache):
    """Serve the demo model, which is loaded: tests look at it before they send anything."""
    with serving(demo()) as running:
        assert running.raw("GET", "/props")[0] == 200
        yield running


@pytest.fixture(scope="module")
def browser():
    """Start a browser for the tests of a file: its driver has a loop in this thread, which others would meet."""
    driver = pytest.importorskip("playwright.sync_api", reason=f"playwright is not installed: {HOW}")
    program = find_browser()
    with driver.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=program)
        yield running
        running.close()


@pytest.fixture(scope="module")
def quick():
    """Serve a model of prepared replies; return its address."""
    with listening(new_server(fake_model(Replies(*["Good."] * 100), name="quick"))) as running:
        yield running.url.removesuffix("/v1")
