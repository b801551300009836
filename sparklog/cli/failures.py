"""How a failure is told: on stderr, as text, or as one JSON object where JSON was asked for.

The object's fields are API (docs/cli.md). On a terminal the fix has a line of its own, and the SQLSTATE is
left out; in a pipe the message is that of the exception, as it stands in logs. Where what to do next is
said in Python's words, the shell has its own.
Not here: which failures there are (sparklog/errors.py), exit codes (main.py).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from sparklog.cli.notes import is_terminal, note
from sparklog.cli.plain_text import json_text, plain
from sparklog.errors import SparklogError

USAGE = "USAGE"
FAILED = "FAILED"
_FIXES = {
    "BROKER_UNREACHABLE": "check the address, and that sparklog-server runs there; no broker is needed "
    "where the root is at hand: --root DIR",
    "ROOT_NOT_FOUND": "check the path, or make a root there: sparklog topics create",
}


def asks_for_json(arguments: Sequence[str]) -> bool:
    """Does a command line say `--output json`? Its words are looked at, for it may be past parsing."""
    asked = False
    for word, value in zip(arguments, [*arguments[1:], ""], strict=True):
        if word == "--":
            break
        if word == "--output":
            asked = value == "json"
        elif word.startswith("--output="):
            asked = word == "--output=json"
    return asked


def in_shell_words(error: Exception) -> Exception:
    """The same error, with what to do next as it can be typed."""
    if isinstance(error, SparklogError) and error.code in _FIXES:
        return type(error)(error.code, error.message, fix=_FIXES[error.code])
    return error


def show_failure(error: Exception, message: str, *, as_json: bool) -> None:
    """Tell of an error; `message` is its text."""
    if as_json:
        note(json_text({"error": _document(error, message)}))
    elif isinstance(error, SparklogError) and is_terminal(sys.stderr):
        fix = error.fix.rstrip(".")
        problem, _, _ = message.rpartition(f" Fix: {fix}. ")
        note(f"Error: {plain(problem)}\nFix: {plain(fix)}.")
    else:
        note(f"Error: {plain(message)}")


def _document(error: Exception, message: str) -> dict[str, str | None]:
    if isinstance(error, SparklogError):
        return {
            "code": f"SPARKLOG_{error.code}",
            "message": error.message,
            "fix": error.fix,
            "sqlstate": error.sqlstate,
        }
    code = USAGE if isinstance(error, click.UsageError) else FAILED
    return {"code": code, "message": message, "fix": None, "sqlstate": None}
