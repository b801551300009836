"""/metrics: texts of some megabytes, for few at once, and sent as fast as each client takes them.

uvicorn holds what a client has not taken yet, and counts it as sent; it waits for that only if more is to be
sent. So the end of an answer is sent by itself.
Invariants: MAX_SCRAPES are held, waiting for their text or being sent; more are refused (503), so that
    connections that wait for a text are few, too.
Not here: what the numbers are, and that one text is made at a time (observe/collector.py); how long a client
    may take (connections.py).
Concurrency: event loop only; texts are made in a storage thread.
"""

from typing import Final

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from sparklog_server.observe.collector import Scraper

MAX_SCRAPES: Final = 8


class Scrapes:
    """An ASGI application; see the module's docstring."""

    def __init__(self, scraper: Scraper) -> None:
        self._scraper = scraper
        self._count = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if self._count >= MAX_SCRAPES:
            await PlainTextResponse("too many scrapes at once", 503)(scope, receive, send)
            return
        self._count += 1
        try:
            text, content_type = await self._scraper.scrape(Headers(scope=scope).get("accept", ""))
            await _send(text, content_type, send)
        finally:
            self._count -= 1


async def _send(text: bytes, content_type: str, send: Send) -> None:
    head = Response(headers={"content-type": content_type, "content-length": str(len(text))})
    await send({"type": "http.response.start", "status": 200, "headers": head.raw_headers})
    await send({"type": "http.response.body", "body": text, "more_body": True})
    await send({"type": "http.response.body"})  # once the text is on its way
