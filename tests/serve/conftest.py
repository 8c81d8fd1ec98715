"""What the tests of the server share: one that answers with the demo model."""

import pytest

pytest.importorskip("starlette", reason="the server needs the extra `serve`")
pytest.importorskip("uvicorn", reason="the server needs the extra `serve`")

from local_server import demo, serving


@pytest.fixture(scope="package")
def server(kernel_cache):
    """Serve the demo model, which is loaded: tests look at it before they send anything."""
    with serving(demo()) as running:
        assert running.raw("GET", "/props")[0] == 200
        yield running
