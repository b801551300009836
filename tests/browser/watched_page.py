"""A page of a browser that notes what must not happen: errors, dialogs, requests to other hosts."""

import functools
from importlib import resources
from typing import Any

TIMEOUT_MS = 30_000


@functools.cache
def axe_source() -> str:
    """axe-core, which the package axe-playwright-python brings."""
    return (resources.files("axe_playwright_python") / "axe.min.js").read_text()


class WatchedPage:
    """A page, and what went wrong in it."""

    def __init__(self, page: Any, base: str) -> None:
        self.page = page
        self.base = base
        self.problems: list[str] = []
        self.expects_failure = False  # Chromium reports answers of 400 and more as errors
        page.set_default_timeout(TIMEOUT_MS)
        page.on("console", self._note_console)
        page.on("pageerror", lambda error: self.problems.append(f"script: {error}"))
        page.on("dialog", self._note_dialog)
        page.on("request", self._note_request)

    def go(self, path: str) -> int:
        """Open a page of the console; return its status."""
        answer = self.page.goto(self.base + path)
        status: int = answer.status
        return status

    def check(self) -> None:
        """Nothing went wrong."""
        assert not self.problems, self.problems

    def axe(self) -> list[str]:
        """What axe-core finds wrong, in words."""
        self.page.evaluate(axe_source())
        found = self.page.evaluate("axe.run()")
        return [
            f"{one['id']}: {node['html'][:200]} ({'; '.join(check['message'] for check in node['any'])})"
            for one in found["violations"]
            for node in one["nodes"]
        ]

    def overflow(self) -> int:
        """By how many pixels the page is wider than the window."""
        width: int = self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        return width

    def _note_console(self, message: Any) -> None:
        if message.type not in {"error", "warning"}:
            return
        if self.expects_failure and "the server responded with a status of" in message.text:
            return
        self.problems.append(f"console: {message.text}")

    def _note_dialog(self, dialog: Any) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _note_request(self, request: Any) -> None:
        if not request.url.startswith((f"{self.base}/", "data:", "blob:")):
            self.problems.append(f"request: {request.url}")
