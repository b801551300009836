"""Requests to one bucket: with patience where repeating is harmless, one attempt where it is not.

Invariants:
    - `call` repeats a request until `retry_timeout` is up; only for requests that may be repeated;
    - `put_once` makes exactly one attempt whenever anything may have been sent;
    - what is sent says its MD5: a store that takes a request whose sender died before the body for an empty
      object (SeaweedFS 4.48 does, without it) has a commit of no bytes then, that nobody can read or replace;
      and many stores refuse to delete several objects without it, which botocore gave up for newer checksums;
    - an answer is checked before it is returned (s3_answers.py): what makes no sense is a failed attempt;
    - at most `max_concurrency` requests are under way, and none waits longer than its timeouts for the
      store, so nothing hangs;
    - what is read ahead leaves some of them to others: a look at the log, or a sign of life, does not queue
      behind a reader that has thousands of objects to go through.
Not here: names, and what objects mean (s3.py).
Concurrency: any thread. After a fork the child makes a client of its own: connections cannot be shared.
Sources: docs/s3.md, ADR 0009.
"""

import base64
import contextlib
import email.utils
import hashlib
import logging
import math
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from botocore.exceptions import BotoCoreError, ClientError
from urllib3.exceptions import HTTPError

from sparklog.clock import Clock
from sparklog.errors import RetriableError, SparklogError, StorageError
from sparklog.failpoints import failpoint
from sparklog.forking import tell_after_fork
from sparklog.storage.base import IndefinitePutError
from sparklog.storage.s3_answers import (
    PageOrder,
    WrongAnswerError,
    read_range,
    size_of_range_error,
    validate_answer,
)
from sparklog.storage.s3_connection import connect
from sparklog.storage.s3_errors import Outcome, describe, has_code, outcome_of, storage_error
from sparklog.storage.s3_options import S3Options

_log = logging.getLogger(__name__)
T = TypeVar("T")
_FIRST_WAIT_MS = 50.0
_LONGEST_WAIT_MS = 2_000.0
# A wrong endpoint should be told at once: patience is for stores that have answered before.
_FIRST_CONTACT_MS = 5_000
# botocore passes on what it has no name for: a damaged TLS record in a body is urllib3's SSLError.
FAILURES = (BotoCoreError, ClientError, HTTPError, OSError)
_LEFT_BY_READING_AHEAD = 3
_REPEATED = {Outcome.UNSENT, Outcome.BUSY, Outcome.CONFLICT}


class S3Client:
    """A bucket, as seen with given options."""

    def __init__(self, bucket: str, options: S3Options, clock: Clock) -> None:
        self.bucket = bucket
        self.options = options
        self._counts: Counter[str] = Counter()
        self._clock = clock
        self._random = random.Random()
        self._guard = threading.local()
        self._has_answered = False
        self._is_known_replica = False
        self._completes_unconditionally = False  # it was answered that it does not know the condition
        self._ahead_ms = 0  # the store's clock minus ours, as of the last answer
        self.after_fork_in_child()
        tell_after_fork(self)

    def after_fork_in_child(self) -> None:
        """Connections, threads and locks are the parent's: begin without any."""
        self._lock = threading.Lock()
        self.probe_lock = threading.Lock()  # held while the store is raced (s3_probe.py)
        self._permits = threading.BoundedSemaphore(self.options.max_concurrency)
        self._client: Any = None
        self._pool: ThreadPoolExecutor | None = None
        self._ahead_pool: ThreadPoolExecutor | None = None
        self._random.seed()

    @property
    def identity(self) -> str:
        """The bucket, wherever it is: endpoint and name."""
        return f"{self._connected().meta.endpoint_url}/{self.bucket}"

    # --- requests ------------------------------------------------------------------------------------

    def call(self, operation: str, url: str, *, within_ms: int = 0, **arguments: Any) -> dict[str, Any]:
        """One request that may be repeated. Raises StorageError; NotFoundError for a missing object.

        Args:
            within_ms: nobody waits for longer, whatever the store does; 0: up to `retry_timeout`.
        """

        def attempt() -> dict[str, Any]:
            return self._attempt(operation, arguments)

        if not within_ms:
            return self._repeat(operation, url, attempt)
        # A request that hangs does so up to its timeouts, in a thread.
        answer = self.submit(lambda: self._repeat(operation, url, attempt, within_ms))
        try:
            return answer.result(within_ms / 1000)
        except TimeoutError as error:
            answer.cancel()
            late = TimeoutError(f"no answer within {within_ms} ms")
            raise storage_error(operation, url, late, self.options) from error

    def pages(self, url: str, *, within_ms: int = 0, **arguments: Any) -> Iterator[dict[str, Any]]:
        """Yield the answers to list_objects_v2, page by page, which ascend. Raises StorageError."""
        order = PageOrder()
        while True:
            answer = self.call("list_objects_v2", url, within_ms=within_ms, **arguments)
            names = [entry["Key"] for entry in answer.get("Contents", ())]
            names += [entry["Prefix"] for entry in answer.get("CommonPrefixes", ())]
            try:
                order.add(names if "Delimiter" not in arguments else sorted(names))
            except WrongAnswerError as error:
                raise storage_error("list_objects_v2", url, error, self.options) from error
            yield answer
            if not answer["IsTruncated"]:
                return
            arguments["ContinuationToken"] = answer["NextContinuationToken"]

    def get(self, url: str, key: str, position: int, end: int | None) -> tuple[bytes, int]:
        """(bytes [position, end), the object's size). Nothing where the range lies past its end."""
        # Always a range: then the answer says which bytes these are, and an error page is not one.
        asked = f"bytes={position}-{'' if end is None else end - 1}"

        def attempt() -> tuple[bytes, int]:
            try:
                return read_range(self._attempt("get_object", {"Key": key, "Range": asked}), position, end)
            except ClientError as error:
                if outcome_of(error) is Outcome.RANGE:
                    return b"", size_of_range_error(error, position)
                raise

        return self._repeat("get_object", url, attempt)

    def put_once(self, url: str, key: str, data: bytes, guard: Callable[[], bool] | None) -> None:
        """PUT with If-None-Match, one attempt; a connection that was never made is tried again.

        The guard is asked after the request was signed: a store that refuses old dates (S3: 15 minutes)
        then bounds how late the request can take effect, however long this process is stopped.

        Raises:
            AlreadyExistsError: 412. IndefinitePutError: no definite answer. StorageError: refused.
            RetriableError: the guard said no.
        """
        arguments = {"Key": key, "Body": data, "IfNoneMatch": "*"}
        for wait_ms in self._waits():
            self._guard.ask = guard
            try:
                failpoint("s3.put.before")
                self._attempt("put_object", arguments)
                failpoint("s3.put.answered")
            except FAILURES as error:
                outcome = outcome_of(error)
                if outcome is not Outcome.UNSENT or wait_ms is None:
                    raise self._put_error(url, error, outcome) from error
                self._clock.sleep_ms(wait_ms)
            else:
                return
            finally:
                self._guard.ask = None
        raise AssertionError("the last wait is None")

    def complete_upload(self, url: str, arguments: dict[str, Any]) -> None:
        """Finish a multipart upload unless the name is taken, as far as the store knows that condition.

        Raises:
            AlreadyExistsError: 412; perhaps because of an earlier attempt, whose answer was lost.
            NotFoundError: no such upload; perhaps for the same reason. StorageError: as `call`.
        """
        if not self._completes_unconditionally:
            try:
                self.call("complete_multipart_upload", url, **arguments, IfNoneMatch="*")
            except StorageError as error:
                # Those that do not know it answer 501, or that an argument is illegal (400).
                if error.code not in {"STORAGE_UNSUPPORTED", "STORAGE_FAILED"}:
                    raise
                self._completes_unconditionally = True
            else:
                return
        self.call("complete_multipart_upload", url, **arguments)

    def resolve(self, attempt: Callable[[], T]) -> T:
        """Run `attempt` until it is not an IndefinitePutError, or the time is up."""
        for wait_ms in self._waits():
            try:
                return attempt()
            except IndefinitePutError:
                if wait_ms is None:
                    raise
                self._clock.sleep_ms(wait_ms)
        raise AssertionError("the last wait is None")

    def submit(self, work: Callable[[], T]) -> "Future[T]":
        """Run in the background, while there is one."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self.options.max_concurrency, "sparklog-s3")
            pool = self._pool
        try:
            return pool.submit(work)
        except RuntimeError:  # the interpreter ends: a snapshot that it waits for is finished by one thread
            return _done_here(work)

    def submit_ahead(self, work: Callable[[], T]) -> "Future[T]":
        """Likewise, for what somebody is going to read: in threads of its own, fewer than requests may be."""
        with self._lock:
            if self._ahead_pool is None:
                threads = max(1, self.options.max_concurrency - _LEFT_BY_READING_AHEAD)
                self._ahead_pool = ThreadPoolExecutor(threads, "sparklog-s3-ahead")
            return self._ahead_pool.submit(work)

    def counts(self) -> dict[str, int]:
        """Attempts by operation ("put_object", ...), "sent_bytes" and "received_bytes", since the start."""
        with self._lock:
            return dict(self._counts)

    def storage_now_ms(self, here_ms: int) -> int:
        """The store's clock, as of the last answer."""
        return here_ms + self._ahead_ms

    def now_ms(self) -> int:
        """The clock of the machine here."""
        return self._clock.now_ms()

    # --- attempts ------------------------------------------------------------------------------------

    def _repeat(self, action: str, url: str, attempt: Callable[[], T], most_ms: float = math.inf) -> T:
        """Run `attempt` until it succeeds, is refused, or the time is up."""
        for wait_ms in self._waits(most_ms):
            try:
                return attempt()
            except FAILURES as error:
                if outcome_of(error) not in _REPEATED or wait_ms is None:
                    raise storage_error(action, url, error, self.options) from error
                self._clock.sleep_ms(wait_ms)
        raise AssertionError("the last wait is None")

    def _attempt(self, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
        client = self._connected()
        with self._permits:
            body = arguments.get("Body")
            self._count({operation: 1, "sent_bytes": len(body or b"")})
            if body is not None:
                arguments = {**arguments, "ContentMD5": _md5_of(body)}
            try:
                answer: dict[str, Any] = getattr(client, operation)(Bucket=self.bucket, **arguments)
                if operation == "get_object":  # the body is part of the request
                    answer["Body"] = answer["Body"].read()
                    self._count({"received_bytes": len(answer["Body"])})
                    if answer.get("ReplicationStatus") == "REPLICA":
                        self._warn_of_replica()
                validate_answer(operation, arguments, answer)
            except ClientError as error:
                if has_code(error):
                    self._note_answer(error.response)
                raise
            except (SparklogError, MemoryError, *FAILURES):
                raise
            except Exception as error:  # a size, a date, ... that botocore cannot parse
                raise WrongAnswerError(f"an answer that cannot be read: {error!r}") from error
        self._note_answer(answer)
        return answer

    def _warn_of_replica(self) -> None:
        """Once: what replication brings, it brings in any order, and over what was put here."""
        if not self._is_known_replica:
            self._is_known_replica = True
            _log.warning(
                "s3://%s holds objects that were replicated from another bucket: while replication goes on, "
                "it is not the log in order; do not read it as one, and never publish to it; see docs/s3.md",
                self.bucket,
            )

    def _count(self, more: dict[str, int]) -> None:
        with self._lock:
            self._counts.update(more)

    def _note_answer(self, answer: Any) -> None:
        self._has_answered = True
        date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        if date:
            # A date that is none leaves what the one before has said.
            with contextlib.suppress(ValueError, TypeError, OverflowError):
                stamp = email.utils.parsedate_to_datetime(date).timestamp()
                self._ahead_ms = round(stamp * 1000) - self._clock.now_ms()

    def _waits(self, most_ms: float = math.inf) -> Iterator[float | None]:
        """Milliseconds to wait after each failed attempt; None when there is no time for another."""
        start_ms = self._clock.monotonic_ms()
        longest = _FIRST_WAIT_MS
        while True:
            patience_ms = min(self.options.retry_timeout * 1000, most_ms)
            if not self._has_answered:
                patience_ms = min(patience_ms, _FIRST_CONTACT_MS)
            wait_ms = self._random.uniform(longest / 2, longest)
            if self._clock.monotonic_ms() - start_ms + wait_ms > patience_ms:
                break
            yield wait_ms
            longest = min(_LONGEST_WAIT_MS, longest * 2)
        yield None

    def _put_error(self, url: str, error: Exception, outcome: Outcome) -> StorageError:
        if outcome in {Outcome.BUSY, Outcome.CONFLICT}:
            return IndefinitePutError(
                "PUT_INDEFINITE",
                f"{url}: no definite answer: {describe(error, self.options)}",
                fix="Repeat the same put",
            )
        return storage_error("put", url, error, self.options)

    def _connected(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = connect(self.bucket, self.options)
                self._client.meta.events.register("before-send.s3.PutObject", self._before_send)
                self._client.meta.events.register("before-call.s3.DeleteObjects", _with_md5)
            return self._client

    def _before_send(self, **_: Any) -> None:
        ask: Callable[[], bool] | None = getattr(self._guard, "ask", None)
        if ask is not None and not ask():
            raise RetriableError(
                "PUT_REFUSED", "overtaken before the put was sent", fix="Refresh and try again"
            )


def _done_here(work: Callable[[], T]) -> "Future[T]":
    future: Future[T] = Future()
    try:
        future.set_result(work())
    except Exception as error:  # noqa: BLE001 - for whoever asks for the result
        future.set_exception(error)
    return future


def _with_md5(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
    """Let a request of botocore's say its MD5, and not the newer checksum that some stores refuse."""
    context.pop("checksum", None)
    params["headers"]["Content-MD5"] = _md5_of(params["body"])


def _md5_of(body: bytes) -> str:
    """As Content-MD5 has it, the one checksum that every store knows."""
    return base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
