"""A real browser and consoles of roots on loopback: `make test-console` installs what it needs.

Debian's Chromium, by Playwright (a package of PyPI). Where one is missing these tests are skipped.
"""

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette

from tests.browser.watched_page import WatchedPage

CHROMIUM = Path(os.environ.get("SPARKLOG_CHROMIUM", "/usr/bin/chromium"))
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium. While Playwright is started its event loop runs in this thread: no other module's tests may
    find it there.
    """
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright: see make test-console")
    if not CHROMIUM.exists():
        pytest.skip(f"there is no {CHROMIUM}: see make test-console")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@contextlib.contextmanager
def serving(app: Starlette) -> Iterator[str]:
    """A console on a free port; its address without a slash at the end."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(
            uvicorn.Config(app, log_config=None, access_log=False, ws="none", timeout_graceful_shutdown=5)
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="console")
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            app.state.end_streams()
            server.should_exit = True
            thread.join(60)
            assert not thread.is_alive()


Open = Callable[..., WatchedPage]


@pytest.fixture
def open_page(browser: Any) -> Iterator[Open]:
    """Opens a page of a console, in a window of its own; at the end nothing may have gone wrong in one."""
    with contextlib.ExitStack() as contexts:
        opened: list[WatchedPage] = []

        def make(base: str, path: str = "", **options: Any) -> WatchedPage:
            context = browser.new_context(base_url=base, **options)
            contexts.callback(context.close)
            page = WatchedPage(context.new_page(), base)
            opened.append(page)
            if path:
                page.go(path)
            return page

        yield make
        for page in opened:
            page.check()
