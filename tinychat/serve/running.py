"""Running the server: from its options to the end of its last reply."""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket
import threading
import webbrowser
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from math import ceil
from typing import TYPE_CHECKING

import uvicorn
from starlette.applications import Starlette

from tinychat.client.running_servers import announced
from tinychat.errors import SettingError
from tinychat.serve.admission import Admission
from tinychat.serve.app import create_app
from tinychat.serve.guard import LOCAL_NAMES, Door
from tinychat.serve.metrics import Metrics
from tinychat.serve.model_pool import Load, ModelPool
from tinychat.serve.prefix_files import PrefixFiles
from tinychat.serve.server import Server, ServerOptions

if TYPE_CHECKING:
    from tinychat.generate.model import Model

# Connections that are open and say nothing.
_KEEP_ALIVE_SECONDS = 75
# For the last events of replies that were ended.
_ENDING_SECONDS = 2


class _Runner(uvicorn.Server):
    """Leaves signals to `_end_by_signals`."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing."""
        yield


def run_server(loads: Mapping[str, Load], options: ServerOptions, say: Callable[[str], None]) -> None:
    """Serve models by name until a signal ends the server.

    `SettingError` if the address cannot be listened at; `TinychatError` if the model that is loaded first cannot be
    loaded.
    """
    with _listening(options.host, options.port) as listener:
        address, port = listener.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address
        url, names = f"http://{shown}:{port}", [options.alias] if options.alias else [*loads]
        with announced(url, names):
            asyncio.run(_serve(loads, options, listener, say, url))


def _listening(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise SettingError(f"port {port} of {host} is in use: give another one with --port, or 0 for any") from None
        # Python adds what it was doing to the reason.
        reason = (error.strerror or str(error)).partition(" (while ")[0]
        message = f"port {port} of {host} cannot be listened at ({reason}): give others with --host and --port"
        raise SettingError(message) from None


def create_server(
    loads: Mapping[str, Load], options: ServerOptions, say: Callable[[str], None]
) -> tuple[Server, Starlette]:
    """Return a server of models by name, and its ASGI application."""
    files = PrefixFiles(options.cache_disk)

    def prepare(model: Model) -> None:
        """Let a model reuse the prefixes that were saved for it; its notices are lines of the server's log."""
        model.driver.shares_prefixes = options.shares_prefixes
        model.driver.memory_watch.on_notice = say
        files.load(model)

    pool = ModelPool(loads, options.most_loaded, options.idle_seconds, prepare, files.save, options.paths)
    server = Server(pool, Admission(options.parallel, options.most_waiting), Metrics(), options, say)
    hosts = LOCAL_NAMES | {options.host.lower()} | {host.lower() for host in options.hosts}
    return server, create_app(server, Door(hosts, options.origins, options.keys))


async def _serve(
    loads: Mapping[str, Load], options: ServerOptions, listener: socket.socket, say: Callable[[str], None], url: str
) -> None:
    server, app = create_server(loads, options, say)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=ceil(options.shutdown_seconds) + _ENDING_SECONDS,
        server_header=False,
    )
    runner = _Runner(config)
    _end_by_signals(server, runner, options.shutdown_seconds)
    first = asyncio.ensure_future(_load_first(server.pool)) if options.loads_first else None
    serving = asyncio.ensure_future(runner.serve(sockets=[listener]))
    try:
        if first is not None:
            await asyncio.wait({first, serving}, return_when=asyncio.FIRST_COMPLETED)
            if first.done():
                first.result()
        say(f"serving at {url}/v1, and a page at {_page_of(url)}")
        if options.opens_page:
            # Beside the loop: a browser in a terminal returns when it is left.
            threading.Thread(target=_open_page, args=(url, say), daemon=True).start()
        await serving
    finally:
        runner.should_exit = True
        await asyncio.gather(serving, return_exceptions=True)


def _open_page(url: str, say: Callable[[str], None]) -> None:
    """Open the page in the browser of the user."""
    page = _page_of(url)
    if not webbrowser.open(page):
        say(f"no browser can be opened: open {page}")


def _page_of(url: str) -> str:
    # An address to listen at everywhere is none to go to.
    return url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:") + "/"


async def _load_first(pool: ModelPool) -> None:
    async with pool.use(None):
        pass


def _end_by_signals(server: Server, runner: uvicorn.Server, seconds: float) -> None:
    """Refuse new requests at the first signal, and end replies after so many seconds; end at once at the second."""
    loop = asyncio.get_running_loop()

    def end() -> None:
        if server.is_ending:
            runner.force_exit = True
            # What is cut off now is no error to tell of.
            logging.getLogger("uvicorn.error").disabled = True
        else:
            loop.call_later(seconds, loop.run_in_executor, None, server.end_replies)
            if server.admission.running:
                server.log(f"replies may end within {seconds:g} s; Ctrl-C again ends them now")
        server.is_ending = runner.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        # Windows has no handlers of loops; there Ctrl-C ends the program.
        with suppress(NotImplementedError, ValueError, RuntimeError):
            loop.add_signal_handler(number, end)
