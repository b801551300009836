"""Changes of a root: a form, a preview of what it would do, and a confirmation that does what was shown.

A subject's module gives `Change`s (topic_changes.py, group_changes.py); `app.py` makes of each a page with a
form, its preview, and a path of the API.
Invariants: nothing is changed without a preview. A preview has a code, which only its reader knows; the code
    confirms once, within KEEP_MS, and what it does is what was shown. So a page of another site, which reads
    no answer, can confirm nothing; and a form that is sent twice changes nothing twice.
    A body has at most MAX_BODY bytes and MAX_FIELDS fields, a preview MAX_ROWS rows; at most MAX_WAITING
    previews are kept, the newest ones.
Not here: what is planned and done, which is the code of the command line's `topics` and `groups`.
Concurrency: `Previews` has one lock; plans are made and done in threads.
After a crash: previews are gone; what was confirmed is done, or not.
"""

import dataclasses
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl

import msgspec

from sparklog.clock import Clock
from sparklog.console.views import Console, Parameter, Query
from sparklog.errors import InvalidRequestError, RetriableError

MAX_BODY: Final = 4 << 20
MAX_FIELDS: Final = 200
MAX_ROWS: Final = 500
MAX_WAITING: Final = 32
KEEP_MS: Final = 15 * 60_000
CONFIRM: Final = "/confirm"
OUTDATED: Final = "PREVIEW_OUTDATED"
FORM: Final = "application/x-www-form-urlencoded"
JSON: Final = "application/json"


class Fields:
    """What a form or a document of the API gives, by name; null is an empty field of a form."""

    def __init__(self, values: Mapping[str, str | None]) -> None:
        self._values = values

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def raw(self, name: str) -> str | None:
        """The text as it was given."""
        return self._values.get(name)

    def text(self, name: str) -> str:
        """The text without blanks around it; empty: none was given."""
        return (self._values.get(name) or "").strip()

    def choice(self, name: str, choices: Collection[str]) -> str:
        """One of these words, the first of them if none was given; InvalidRequestError INVALID_OPTION."""
        found = self.text(name) or next(iter(choices))
        if found not in choices:
            raise wrong(name, found, f"one of {', '.join(choices)}")
        return found

    def number(self, name: str, *, least: int = 0) -> int | None:
        """A whole number of at least `least`; None: none was given. InvalidRequestError INVALID_OPTION."""
        text = self.text(name)
        if not text:
            return None
        digits = text.removeprefix("-") if least < 0 else text
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= 18 and int(text) >= least):
            raise wrong(name, text, "a whole number" if least < 0 else f"a whole number of at least {least}")
        return int(text)

    def as_typed(self) -> dict[str, str]:
        """For showing a form again."""
        return {name: value or "" for name, value in self._values.items()}


def wrong(name: str, found: str, expected: str) -> InvalidRequestError:
    """Return the error for a field."""
    return InvalidRequestError(
        "INVALID_OPTION", f"{name}: found {found[:100]!r}, expected {expected}", fix=f"correct {name}"
    )


def read_fields(body: bytes, media_type: str, known: Collection[str]) -> Fields:
    """Read a body.

    Raises:
        InvalidRequestError: INVALID_OPTION: not of this media type, too many fields, one that is not known
            or was given twice.
    """
    values = _form(body) if media_type == FORM else _document(body)
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise wrong("field", unknown[0], f"one of {', '.join(known)}")
    return Fields(values)


def _form(body: bytes) -> dict[str, str | None]:
    """A browser sends each line end of a text as CR LF."""
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS
        )
    except ValueError as error:
        raise wrong("form", str(error), f"at most {MAX_FIELDS} fields in UTF-8") from None
    found: dict[str, str | None] = {}
    for name, text in pairs:
        if name in found:
            raise wrong("field", name, "each field once")
        found[name] = text.replace("\r\n", "\n") or None
    return found


def _document(body: bytes) -> dict[str, str | None]:
    try:
        found = msgspec.json.decode(body, type=dict[str, str | int | bool | None])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise wrong("body", str(error), "a JSON object of texts, numbers, true, false and null") from None
    if len(found) > MAX_FIELDS:
        raise wrong("body", f"{len(found)} fields", f"at most {MAX_FIELDS}")
    return {name: _text(value) for name, value in found.items()}


def _text(value: str | int | bool | None) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else str(value)


# --- previews ----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRow:
    """What changes: before and after. null: there is or will be nothing."""

    what: str
    before: str | None
    after: str | None
    note: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What a change would do. Nothing is done yet.

    Fields:
        button: what confirming does, in words.
        is_loss: it removes records or positions.
        rows: MAX_ROWS at most, of `row_count`.
        notes: what else it means.
        confirm: the code that does it, once; null: there is nothing to do.
    """

    title: str
    button: str
    is_loss: bool = False
    rows: tuple[ChangeRow, ...]
    row_count: int
    notes: tuple[str, ...] = ()
    confirm: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A preview, and what does it.

    Fields:
        apply: does it, and returns the path of the page that shows the result; None: nothing is to be done.
    """

    preview: Preview
    apply: Callable[[], str] | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What was confirmed is done; `page` is the path of the console that shows it."""

    title: str
    page: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A form, and what it plans.

    Fields:
        path: of the page and, below /api/v1, of the API.
        subject: the entry of the navigation that it belongs to.
        form: returns what the form shows; raises if there is no such thing.
        fields: of the form; others are refused.
    """

    path: str
    subject: str
    template: str
    form: Callable[[Console, Query], Any]
    plan: Callable[[Console, Query, Fields], Plan]
    doc: str
    fields: tuple[Parameter, ...]


class _Waiting(NamedTuple):
    at_ms: int
    user: str
    plan: Plan


class Previews:
    """The plans that were shown and are not confirmed, by code.

    Each is its user's ("" where nobody logs in): nobody else confirms it. Of too many the oldest of the user
    who has the most goes.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._plans: dict[str, _Waiting] = {}  # the oldest first

    def add(self, plan: Plan, user: str = "") -> Preview:
        """Keep a plan that does something; return its preview with a code."""
        if plan.apply is None:
            return plan.preview
        code = secrets.token_urlsafe(24)
        with self._lock:
            self._plans[code] = _Waiting(self._clock.monotonic_ms(), user, plan)
            if len(self._plans) > MAX_WAITING:
                counts = Counter(one.user for one in self._plans.values())
                del self._plans[max(self._plans, key=lambda code: counts[self._plans[code].user])]
        return dataclasses.replace(plan.preview, confirm=code)

    def confirm(self, code: str, user: str = "") -> Done:
        """Do what was shown.

        Raises:
            RetriableError: PREVIEW_OUTDATED; what `apply` raises.
        """
        with self._lock:
            found = self._plans.get(code)
            if found is not None and found.user == user:
                del self._plans[code]
            else:
                found = None
        if found is None or self._clock.monotonic_ms() - found.at_ms > KEEP_MS:
            raise outdated("it was confirmed before, or was shown too long ago")
        plan = found.plan
        assert plan.apply is not None
        return Done(title=plan.preview.title, page=plan.apply())


def outdated(why: str) -> RetriableError:
    """Return the error for a preview that is not true any more."""
    return RetriableError(
        OUTDATED,
        f"nothing was changed: {why}",
        fix="look at the state as it is now, and fill in the form again",
    )
