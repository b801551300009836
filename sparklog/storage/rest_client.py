"""One HTTP request at a time, for stores whose client libraries repeat requests by themselves (ADR 0036).

Invariants:
    - one attempt per request: urllib3 neither repeats nor redirects; ObjectClient decides what is repeated;
    - the guard of a put is asked after the request was signed, just before it is sent;
    - bytes are returned only if the response names exactly their range, as in s3_client.py;
    - a message never holds credentials, nor the query of a URL, which may hold a signature.
Not here: what the stores' answers mean (gcs.py, azure.py).
Concurrency: any thread. After a fork the child makes its own connections.
Sources: RFC 9110; urllib3's exceptions.
"""

import dataclasses
import functools
import json
import math
import re
import ssl
import urllib.parse
import urllib.request
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import urllib3
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, ProxyError

from sparklog.clock import Clock
from sparklog.errors import AlreadyExistsError, NotFoundError, SparklogError, StorageError
from sparklog.storage.object_client import ObjectClient, Outcome, Page, PageOrder, WrongAnswerError, ask
from sparklog.storage.object_options import ObjectOptions, hide

_MAX_TEXT = 500
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")
_SUCCESS = range(200, 300)
# As a page quotes a request, perhaps cut off.
_CREDENTIAL = re.compile(
    r"(\b(?:(?:bearer|sharedkey)\s+|(?:sig|delegation|assertion|\w+_token|\w+_secret)=))[^\s&\"'<>]+",
    re.IGNORECASE,
)
# What one timeout is for while a body is sent: a slow network would not send a large one within it.
_SENT_BYTES = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request, as its store's module describes it.

    Fields:
        name: the operation, for counts and messages ("put_object").
        path: below the endpoint, quoted.
        accepts: statuses that are answers, besides 2xx.
    """

    name: str
    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | bytearray | memoryview | None = field(default=None, repr=False)
    accepts: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A response, with its whole body; names of headers in lower case."""

    status: int
    headers: Mapping[str, str]
    data: bytes = field(repr=False)


class AnswerError(Exception):
    """The store has answered, and not what was asked for.

    Fields:
        code: the store's name of the error; "" if no store answered.
        request: the name of the request.
    """

    request = ""

    def __init__(self, answer: Answer, code: str, message: str) -> None:
        super().__init__(f"the store answered {answer.status} {code}: {message}")
        self.answer = answer
        self.code = code


class CredentialsError(OSError):
    """Credentials that are malformed, or the answer to them is: nothing was sent to the store."""


class RestClient(ObjectClient):
    """A client over urllib3.

    Fields:
        page_size: of a listing.
        place: what the store calls a bucket.
        refusal_fix: what to do about missing rights.
    """

    failures: ClassVar[tuple[type[Exception], ...]] = (AnswerError, HTTPError, OSError)
    page_size: ClassVar[int] = 1000
    place: ClassVar[str] = "bucket"
    refusal_fix: ClassVar[str]

    def __init__(self, endpoint: str, options: ObjectOptions, clock: Clock) -> None:
        self.endpoint = endpoint.rstrip("/")
        self.base_options = options
        super().__init__(options, clock)

    def after_fork_in_child(self) -> None:
        super().after_fork_in_child()
        self._http: urllib3.PoolManager | None = None

    # --- what a store adds ---------------------------------------------------------------------------

    @abstractmethod
    def sign(self, request: Request) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """Return (query, headers) with credentials. Raises one of `failures`."""

    @abstractmethod
    def parse_error(self, answer: Answer) -> AnswerError:
        """Return the error of an answer that is not a success."""

    @abstractmethod
    def outcome_of_answer(self, error: AnswerError) -> Outcome:
        """Return what the store's error means; BUSY if it is unknown."""

    @abstractmethod
    def is_bucket_missing(self, error: Exception) -> bool:
        """True if the answer says that there is no such bucket."""

    # --- requests ------------------------------------------------------------------------------------

    def send(self, request: Request, guard: Callable[[], bool] | None = None) -> Answer:
        """Make one attempt; another one if the store refuses the token, which may have been revoked.

        Raises one of `failures`; RetriableError if the guard refuses.
        """
        try:
            return self._send_signed(request, guard)
        except AnswerError as error:
            is_of_store = error.answer.status == 401 and bool(error.code)
            if not is_of_store or "authorization" in request.headers or not self.forget_token():
                raise
        return self._send_signed(request, guard)

    def forget_token(self) -> bool:
        """Drop the token, so that the next request asks for a new one; false if there is none."""
        return False

    def _send_signed(self, request: Request, guard: Callable[[], bool] | None) -> Answer:
        with self._permits:
            query, headers = self._signed(request)
            target = self.endpoint + request.path
            if query:
                target += "?" + urllib.parse.urlencode(query, quote_via=urllib.parse.quote)
            ask(guard)
            return self._exchange(request, target, headers)

    def send_conditional(self, request: Request, guard: Callable[[], bool] | None) -> Answer:
        """Send a conditional request. As `send`; WrongAnswerError for a refusal that is not the store's own.

        Something in between may have passed the request on, and refuse the answer.
        """
        try:
            return self.send(request, guard)
        except AnswerError as error:
            if not error.code:
                raise WrongAnswerError(str(error)) from error
            raise

    def _signed(self, request: Request) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """Sign a request. Raises CredentialsError for what a library lets through, without its text."""
        try:
            query, headers = self.sign(request)
        except self.failures:
            raise
        except (SparklogError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - of any library, about a key file or an answer
            problem = f"malformed credentials, or answer to them: {type(error).__name__}"
            raise CredentialsError(problem) from None
        if not all(value.isascii() and value.isprintable() for value in headers.values()):
            raise CredentialsError("credentials with characters that no header may have")
        return query, headers

    def _exchange(self, request: Request, target: str, headers: Mapping[str, str]) -> Answer:
        """Send a request to a whole URL. Raises one of `failures`."""
        self._count({request.name: 1, "sent_bytes": len(request.body or b"")})
        body: Any = _pieces(request.body) if request.body else request.body
        length = {} if request.body is None else {"content-length": str(len(request.body))}
        response = self.connected().request(
            request.method,
            target,
            headers={**headers, **length},
            body=body,
            redirect=False,
            retries=False,
            decode_content=False,
        )
        answer = Answer(
            status=response.status,
            headers={name.lower(): value for name, value in response.headers.items()},
            data=response.data,
        )
        self._count({"received_bytes": len(answer.data)})
        if answer.status not in _SUCCESS and answer.status not in request.accepts:
            error = self.parse_error(answer)
            error.request = request.name
            if error.code:
                self.note_time(answer.headers.get("date"))
            raise error
        self.note_time(answer.headers.get("date"))
        return answer

    def get_range(self, url: str, request: Request, position: int, end: int | None) -> tuple[bytes, int]:
        """Return (bytes [position, end), the object's size) of a request for them. See ObjectClient.get."""

        def attempt() -> tuple[bytes, int]:
            try:
                return _read_range(self.send(request), position, end)
            except AnswerError as error:
                if self.outcome_of(error) is Outcome.RANGE:
                    if not error.code and "content-range" not in error.answer.headers:
                        raise WrongAnswerError("a range refused by no store") from error
                    return b"", _size_of_range_error(error.answer, position)
                raise

        return self._repeat(request.name, url, attempt)

    def delete_many(self, url: str, keys: Sequence[str]) -> None:
        for removed in [self.submit(functools.partial(self.delete, url, key)) for key in keys]:
            removed.result()

    def pages(
        self,
        url: str,
        request: Request,
        next_name: str,
        parse: Callable[[Answer], tuple[Page, str]],
        within_ms: int,
    ) -> Iterator[Page]:
        """Yield the pages of a listing. See ObjectClient.listed.

        Args:
            next_name: of the query's field with the token of the next page.
            parse: returns (page, token of the next). Raises WrongAnswerError.

        Raises:
            StorageError: also if the pages do not ascend.
        """
        order = PageOrder()
        while True:
            page, token = self._within(
                within_ms,
                functools.partial(self._page, url, request, parse),
                functools.partial(self.storage_error, request.name, url),
            )
            yield self.ordered(url, page, order)
            if page.is_last:
                return
            request = dataclasses.replace(request, query={**request.query, next_name: token})

    def _page(
        self, url: str, request: Request, parse: Callable[[Answer], tuple[Page, str]], most_ms: float
    ) -> tuple[Page, str]:
        return self._repeat(request.name, url, lambda: parse(self.send(request)), most_ms)

    def ordered(self, url: str, page: Page, order: PageOrder) -> Page:
        """Return the page if it is behind the one before it. Raises StorageError."""
        names = [listed.key for listed in page.objects]
        try:
            order.add(names, page.directories)
        except WrongAnswerError as error:
            raise self.storage_error("list_objects", url, error) from error
        return page

    def connected(self) -> urllib3.PoolManager:
        """Return the pool of connections, made at the first call."""
        with self._lock:
            if self._http is None:
                self._http = connect(self.endpoint, self.base_options)
            return self._http

    # --- errors --------------------------------------------------------------------------------------

    def outcome_of(self, error: Exception) -> Outcome:
        if isinstance(error, AnswerError):
            return self.outcome_of_answer(error)
        if isinstance(error, CredentialsError):
            return Outcome.REFUSED
        cause = error.original_error if isinstance(error, ProxyError) else error
        # Not ProxyError alone: it is raised for any failure of a connection through a proxy.
        return Outcome.UNSENT if isinstance(cause, NewConnectionError | ConnectTimeoutError) else Outcome.BUSY

    def describe(self, error: Exception) -> str:
        text = re.sub(r"(with url: [^?\s]*)?\?\S*", r"\1", str(error) or type(error).__name__)
        text = _CREDENTIAL.sub(r"\1***", hide(text, self.base_options))
        return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."

    def storage_error(self, action: str, url: str, error: Exception) -> StorageError:
        outcome, page = self.outcome_of(error), self.base_options.page
        found = f"{url}: cannot {action.replace('_', ' ')}: {self.describe(error)}"
        status = error.answer.status if isinstance(error, AnswerError) else 0
        if self.is_bucket_missing(error):
            return StorageError(
                "BUCKET_MISSING", found, fix=f"Create the {self.place}, or correct its name and the endpoint"
            )
        if outcome is Outcome.MISSING:
            return NotFoundError(
                "FILE_NOT_FOUND", f"{url}: not found", fix="Check the name, and which process deletes objects"
            )
        if outcome is Outcome.TAKEN:
            return AlreadyExistsError(
                "FILE_EXISTS", f"{url}: exists, expected no such file", fix="Use another name"
            )
        if isinstance(error, WrongAnswerError):
            return StorageError(
                "STORE_ANSWER_WRONG",
                found,
                fix=f"Check the endpoint, and proxies in between; see {page}",
            )
        if outcome in {Outcome.UNSENT, Outcome.BUSY, Outcome.CONFLICT}:
            return StorageError(
                "STORE_UNAVAILABLE",
                f"{found} (retried until the timeout)",
                fix="Check the endpoint, the network and the store; raise retry_timeout to retry longer",
            )
        if status in {0, 401, 403}:
            return StorageError("STORAGE_REFUSED", found, fix=self.refusal_fix)
        return StorageError("STORAGE_FAILED", found, fix="Correct what the store's message names")


def _pieces(body: bytes | bytearray | memoryview) -> Iterator[memoryview]:
    view = memoryview(body)
    for start in range(0, len(view), _SENT_BYTES):
        yield view[start : start + _SENT_BYTES]


def validate_empty(answer: Answer) -> None:
    """Raise WrongAnswerError if an answer has a body, which none of this kind has."""
    if answer.data:
        raise WrongAnswerError(f"{len(answer.data)} bytes, expected none")


def no_answer_code(answer: Answer) -> str:
    """Return the text of an answer that is no store's, in short."""
    return answer.data[:200].decode(errors="replace").strip()


def by_status(status: int, *, is_stores: bool) -> Outcome:
    """Return what a status means that no code of the store explains.

    Args:
        is_stores: the body is an error of the store, not of something in between.
    """
    if status == 404:
        return Outcome.MISSING if is_stores else Outcome.BUSY
    if status == 416:
        return Outcome.RANGE
    if status == 409:
        return Outcome.CONFLICT
    if status in {408, 429} or status >= 500:
        return Outcome.REFUSED if status == 501 else Outcome.BUSY
    return Outcome.REFUSED if is_stores or status in {401, 403} else Outcome.BUSY


def _read_range(answer: Answer, position: int, end: int | None) -> tuple[bytes, int]:
    data, shown = answer.data, answer.headers.get("content-range", "")
    match = _CONTENT_RANGE.fullmatch(shown)
    if match is None:
        if not data and not position and "etag" in answer.headers:  # an empty object has no range
            return b"", 0
        raise WrongAnswerError(f"{len(data)} bytes that are not the requested range")
    first, last, size = (int(text) for text in match.groups())
    expected_last = min(size if end is None else end, size) - 1
    if (first, last, len(data)) != (position, expected_last, last - first + 1):
        raise WrongAnswerError(f"{len(data)} bytes for {shown}, expected {position}-{expected_last}")
    return data, size


def _size_of_range_error(answer: Answer, position: int) -> int:
    text = answer.headers.get("content-range", "").rpartition("/")[2]
    size = parse_int(text, "a size") if text else 0
    if size > position:
        raise WrongAnswerError(f"no bytes from {position} on, of an object of {size} bytes")
    return size


def connect(endpoint: str, options: ObjectOptions) -> urllib3.PoolManager:
    """Return connections to an address, through the proxy that the environment names for it."""
    parts = urllib.parse.urlsplit(endpoint)
    given: dict[str, Any] = {
        "num_pools": 4,
        "maxsize": options.max_concurrency,
        "block": False,
        "retries": False,
        "timeout": urllib3.Timeout(connect=options.connect_timeout, read=options.read_timeout),
        "headers": {"user-agent": "sparklog"},
    }
    if options.verify is False:
        given["cert_reqs"] = ssl.CERT_NONE
    elif isinstance(options.verify, str):
        given["ca_certs"] = options.verify
    proxy = urllib.request.getproxies().get(parts.scheme)
    if proxy and not urllib.request.proxy_bypass(parts.netloc):
        address, headers = _proxy(proxy)
        return urllib3.ProxyManager(address, proxy_headers=headers, **given)
    return urllib3.PoolManager(**given)


def _proxy(url: str) -> tuple[str, Mapping[str, str]]:
    """Return a proxy's address without its user, and the headers that name the user; urllib3 ignores it."""
    scheme, separator, rest = url.rpartition("://")
    user, at, host = rest.rpartition("@")
    headers = urllib3.make_headers(proxy_basic_auth=urllib.parse.unquote(user)) if at else {}
    return f"{scheme if separator else 'http'}://{host}", headers


def parse_json(data: bytes) -> Any:
    """Raises ValueError, also where it is nested too deeply."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parse_int(text: str, what: str) -> int:
    """Raises WrongAnswerError."""
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise WrongAnswerError(f"{what} {text[:40]!r}, expected a number")
    return int(text)


def to_ms(seconds: float) -> int:
    """Raises WrongAnswerError."""
    if not math.isfinite(seconds):
        raise WrongAnswerError("a date without a time")
    return round(seconds * 1000)
