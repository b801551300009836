"""A store on any fsspec file system that proves one thing: of racing callers exactly one creates a name.

A new root is preceded by a race of two processes (fsspec_race.py), and each process's first put by one of two
threads. A file system fails if a name is created twice, or is visible before its content is complete. Then it
is rejected, with what is missing; only the probe was written, and it is removed.

What cannot be proven is that requests are made once: many file systems repeat them, and then report a
conflict with their own success. Those who put compare the content, so that is harmless; it costs a request.
Nothing bounds how late a put may land: no commit is ever removed (ADR 0008), only snapshots are.
Invariants: options that the file system was made with appear in no message.
Concurrency: any thread if the file system says that it is asynchronous, one at a time otherwise. After a fork
    the child makes a new one.
Sources: fsspec.spec.AbstractFileSystem; ADR 0036.
"""

import contextlib
import dataclasses
import datetime as dt
import inspect
import json
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar

import fsspec
import fsspec.core
from fsspec.spec import AbstractFileSystem

from sparklog.clock import Clock, SystemClock
from sparklog.errors import (
    AlreadyExistsError,
    InvalidRequestError,
    NotFoundError,
    SparklogError,
    StorageError,
)
from sparklog.storage.base import TEMPORARY_DIRECTORY
from sparklog.storage.object_client import Listed, ObjectClient, Outcome, Page, Upload, ask
from sparklog.storage.object_options import ObjectOptions, hide, invalid
from sparklog.storage.object_probe import trial_key, try_requests
from sparklog.storage.object_store import ObjectStore
from sparklog.storage.root_rules import PROTOCOL, parse_fsspec_url, scheme_of

ROUNDS = 30
# Large enough that a file system which shows a name before its content is caught.
RACE_BYTES = 256 << 10
_RACE_SECONDS = 120
_MAX_TEXT = 500
_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FsspecOptions(ObjectOptions):
    """Options of a file system. See ObjectOptions.

    Fields:
        given: what the file system is made with.
    """

    store: ClassVar[str] = "an fsspec"

    given: tuple[tuple[str, Any], ...] = dataclasses.field(default=(), repr=False)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Every text, also in lists and dicts: any of them may be one. Longer ones first."""
        found = (text for _, value in self.given for text in _texts(value) if len(text) > 3)
        return tuple(sorted(found, key=len, reverse=True))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)


_OWN = ("retry_timeout", "refresh_interval_ms", "cache_dir", "cache_bytes", "max_concurrency")


def parse_fsspec_options(given: Mapping[str, Any] | None) -> FsspecOptions:
    """Split the options into ours and the file system's.

    Raises:
        InvalidRequestError: one of ours is malformed, or one of the file system's is no plain value.
    """
    values = {name: value for name, value in (given or {}).items() if value is not None}
    if (found := values.pop(PROTOCOL, "fsspec")) != "fsspec":
        raise invalid(FsspecOptions, PROTOCOL, f"found {str(found)[:40]!r}, expected fsspec")
    own = {name: values.pop(name) for name in _OWN if name in values}
    try:
        json.dumps(values)
    except (TypeError, ValueError):
        raise InvalidRequestError(
            "INVALID_OPTION",
            "an option of the file system is no text, number, list or dict",
            fix="Give plain values: other processes must be able to make the same file system",
        ) from None
    options = FsspecOptions.of(own)
    return dataclasses.replace(options, given=tuple(sorted(values.items())))


class FsspecError(OSError):
    """An error of a file system, in place of the exception of whatever library it uses."""


def make_file_system(url: str, options: FsspecOptions) -> tuple[AbstractFileSystem, str]:
    """Return (a new file system that caches nothing, the path).

    Raises:
        InvalidRequestError: no such file system, or it is not installed, or refuses its options.
    """
    scheme = scheme_of(url)
    try:
        fs, path = fsspec.core.url_to_fs(url, skip_instance_cache=True, **dict(options.given))
    except ImportError as error:
        raise InvalidRequestError(
            "STORE_NOT_INSTALLED",
            f"an fsspec root {scheme}:// needs a package that is not installed: {error}",
            fix="Install it, and sparklog[fsspec]",
        ) from error
    except Exception as error:  # of any library
        raise InvalidRequestError(
            "UNSUPPORTED_STORE",
            f"fsspec cannot open {scheme}://: {type(error).__name__}: {_first_line(error, options)}",
            fix="Correct the URL or the options; use a directory, s3://, gs://, abfss:// or az://",
        ) from error
    if not isinstance(fs, AbstractFileSystem):
        raise InvalidRequestError(
            "UNSUPPORTED_STORE", f"{scheme}:// is no file system", fix="Use another store"
        )
    fs.dircache.use_listings_cache = False  # not all take it as an option
    return fs, path.rstrip("/")


def _first_line(error: Exception, options: FsspecOptions) -> str:
    return hide(str(error), options).partition("\n")[0][:_MAX_TEXT]


def create_exclusively(fs: AbstractFileSystem, path: str, data: bytes) -> None:
    """Create a file unless it exists, as well as the file system can. Raises whatever it raises."""
    if _has_own_pipe(fs):
        fs.pipe_file(path, data, mode="create")
        return
    with fs.open(path, "xb") as file:
        file.write(data)


def _has_own_pipe(fs: AbstractFileSystem) -> bool:
    """True if pipe_file(mode="create") is its own: fsspec's asks whether the file exists, and then writes."""
    if getattr(fs, "async_impl", False):
        return "mode" in inspect.signature(fs._pipe_file).parameters
    return type(fs).pipe_file is not AbstractFileSystem.pipe_file


class FsspecClient(ObjectClient):
    """A file system, and a path in it."""

    failures: ClassVar[tuple[type[Exception], ...]] = (FsspecError,)
    parts_in_flight: ClassVar[int] = 1
    starts_after: ClassVar[bool] = False

    def __init__(self, url: str, options: FsspecOptions, clock: Clock) -> None:
        self.url, self.options = url, options
        super().__init__(options, clock)
        self._fs, self.path = make_file_system(url, options)
        self._pid = os.getpid()

    def after_fork_in_child(self) -> None:
        super().after_fork_in_child()
        self._uploads: dict[str, Any] = {}
        self._one_at_a_time = threading.RLock()

    @property
    def identity(self) -> str:
        return self.url

    def file_system(self) -> AbstractFileSystem:
        """Return the file system; a forked child makes its own."""
        with self._lock:
            if self._pid != os.getpid():
                self._fs, _ = make_file_system(self.url, self.options)
                self._pid = os.getpid()
            return self._fs

    # --- requests ------------------------------------------------------------------------------------

    def create(self, key: str, data: bytes, guard: Callable[[], bool] | None) -> None:
        ask(guard)
        try:
            self._run(
                "put_object", lambda fs: self._with_parents(fs, key, create_exclusively, data), len(data)
            )
        except FsspecError as error:
            if isinstance(error.__cause__, TypeError | ValueError):  # perhaps of a damaged answer
                raise FsspecError(str(error)) from None
            raise

    def put(self, url: str, key: str, data: bytes) -> None:
        def write(fs: AbstractFileSystem, path: str, content: bytes) -> None:
            fs.pipe_file(path, content)

        self._repeat(
            "put_object",
            url,
            lambda: self._run("put_object", lambda fs: self._with_parents(fs, key, write, data), len(data)),
        )

    def get(self, url: str, key: str, position: int, end: int | None) -> tuple[bytes, int]:
        def read(fs: AbstractFileSystem) -> tuple[bytes, int]:
            found = fs.info(self._path(key))
            if found.get("type") == "directory":
                raise IsADirectoryError(key)
            size = int(found["size"])
            stop = size if end is None else min(end, size)
            if position >= stop:
                return b"", size
            data = fs.cat_file(self._path(key), start=position, end=stop)
            if len(data) != stop - position:
                raise FsspecError(f"{len(data)} bytes, expected {stop - position}")
            return bytes(data), size

        return self._repeat("get_object", url, lambda: self._run("get_object", read))

    def listed(
        self,
        url: str,
        prefix: str,
        *,
        by_directory: bool = False,
        start_after: str | None = None,
        page_size: int | None = None,  # noqa: ARG002 - one page
        within_ms: int = 0,
    ) -> Iterator[Page]:
        def read(fs: AbstractFileSystem) -> Page:
            try:
                found = _entries(fs, self._path(prefix).rstrip("/"), by_directory=by_directory)
            except FileNotFoundError:
                return Page(is_last=True)
            return self._page(found, start_after)

        yield self._within(
            within_ms,
            lambda most_ms: self._repeat(
                "list_objects", url, lambda: self._run("list_objects", read), most_ms
            ),
            lambda late: self.storage_error("list_objects", url, late),
        )

    def _page(self, found: Sequence[Mapping[str, Any]], start_after: str | None) -> Page:
        inside = f"{self.path.strip('/')}/".lstrip("/")
        objects, directories = [], []
        for entry in found:
            name = str(entry["name"]).lstrip("/")
            if not name.startswith(inside):
                raise StorageError(
                    "STORAGE_UNSUPPORTED",
                    f"{self.url}: a listing with {name!r}, expected names that begin with {inside!r}",
                    fix="Use a directory, s3://, gs://, abfss:// or az://; see docs/filesystems.md",
                )
            key = name[len(inside) :]
            if entry.get("type") == "directory":
                directories.append(f"{key.rstrip('/')}/")
            elif start_after is None or key > start_after:
                objects.append(Listed(key, int(entry["size"] or 0), _modified_ms(entry, self.now_ms())))
        return Page(objects=sorted(objects), directories=sorted(directories), is_last=True)

    def delete(self, url: str, key: str) -> None:
        def remove(fs: AbstractFileSystem) -> None:
            with contextlib.suppress(FileNotFoundError):
                fs.rm_file(self._path(key))

        self._repeat("delete_object", url, lambda: self._run("delete_object", remove))

    def delete_many(self, url: str, keys: Sequence[str]) -> None:
        for key in keys:
            self.delete(url, key)

    # --- uploads in parts ----------------------------------------------------------------------------

    def begin_upload(self, url: str, key: str) -> Upload:
        upload = Upload(url=url, key=key, state=secrets.token_hex(8))

        def begin(fs: AbstractFileSystem) -> None:
            if fs.exists(self._path(key)):
                raise FileExistsError(key)
            self._uploads[upload.state] = self._with_parents(fs, key, _open_to_write, b"")

        self._repeat("begin_upload", url, lambda: self._run("begin_upload", begin))
        return upload

    def put_part(self, upload: Upload, number: int, position: int, data: bytearray, *, is_last: bool) -> None:  # noqa: ARG002 - they are written in order
        file = self._uploads[upload.state]
        try:
            self._run("put_part", lambda _: file.write(bytes(data)), len(data))
        except FsspecError as error:  # what of it was written is unknown
            raise self.storage_error("write", upload.url, error) from error
        upload.tokens[number] = str(position + len(data))

    def complete_upload(self, upload: Upload) -> None:
        file = self._uploads[upload.state]

        def complete(fs: AbstractFileSystem) -> None:
            file.close()
            size = int(fs.info(self._path(upload.key))["size"])
            written = int(upload.tokens[max(upload.tokens)])
            if size != written:
                raise FsspecError(f"closed without an error at {size} bytes of {written}")

        try:
            self._run("complete_upload", complete)
        except FsspecError as error:
            raise self.storage_error("write", upload.url, error) from error
        del self._uploads[upload.state]

    def abort_upload(self, upload: Upload) -> None:
        file = self._uploads.pop(upload.state, None)
        if file is None:
            return
        with contextlib.suppress(Exception):
            file.discard()
        with contextlib.suppress(Exception):
            file.closed = True  # of a buffered file: closing it would finish it

    # --- errors --------------------------------------------------------------------------------------

    def _run(self, name: str, work: Callable[[AbstractFileSystem], _T], sent: int = 0) -> _T:
        """Make one attempt. Raises FsspecError."""
        fs = self.file_system()
        alone = contextlib.nullcontext() if getattr(fs, "async_impl", False) else self._one_at_a_time
        with self._permits, alone:
            self._count({name: 1, "sent_bytes": sent})
            try:
                fs.invalidate_cache()
                result = work(fs)
            except (SparklogError, FsspecError, MemoryError):
                raise
            except Exception as error:  # of any library
                raise FsspecError(f"{type(error).__name__}: {error}") from error
        self._has_answered = True
        return result

    def _with_parents(
        self,
        fs: AbstractFileSystem,
        key: str,
        write: Callable[[AbstractFileSystem, str, bytes], _T],
        data: bytes,
    ) -> _T:
        """Write a file; make its directories if it has none."""
        path = self._path(key)
        try:
            return write(fs, path, data)
        except FileNotFoundError:
            fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        return write(fs, path, data)

    def outcome_of(self, error: Exception) -> Outcome:
        # Only what it was raised from: a timeout of a write may have come after "no such file" of a look.
        for cause in _causes(error, contexts=False):
            if _is_conflict(cause):
                return Outcome.TAKEN
            if isinstance(cause, FileNotFoundError | IsADirectoryError | NotADirectoryError):
                return Outcome.MISSING
            if isinstance(cause, PermissionError | NotImplementedError | TypeError | ValueError):
                return Outcome.REFUSED
        return Outcome.TAKEN if is_conflict(error) else Outcome.BUSY

    def describe(self, error: Exception) -> str:
        text = hide(str(error), self.options)
        return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."

    def storage_error(self, action: str, url: str, error: Exception) -> StorageError:
        outcome = self.outcome_of(error)
        found = f"{url}: cannot {action.replace('_', ' ')}: {self.describe(error)}"
        if outcome is Outcome.MISSING:
            return NotFoundError(
                "FILE_NOT_FOUND", f"{url}: not found", fix="Check the name, and which process deletes files"
            )
        if outcome is Outcome.TAKEN:
            return AlreadyExistsError(
                "FILE_EXISTS", f"{url}: exists, expected no such file", fix="Use another name"
            )
        if outcome is Outcome.BUSY:
            return StorageError(
                "STORE_UNAVAILABLE",
                f"{found} (retried until the timeout)",
                fix="Check the file system; raise retry_timeout to retry longer",
            )
        return StorageError("STORAGE_REFUSED", found, fix="Correct what the file system's message names")

    def _path(self, key: str) -> str:
        return f"{self.path}/{key}"


def _open_to_write(fs: AbstractFileSystem, path: str, _: bytes) -> Any:
    return fs.open(path, "wb")


def _entries(fs: AbstractFileSystem, path: str, *, by_directory: bool) -> list[Mapping[str, Any]]:
    if by_directory:
        return [entry for entry in fs.ls(path, detail=True) if str(entry["name"]).rstrip("/") != path]
    found: Mapping[str, Mapping[str, Any]] = fs.find(path, detail=True)
    return [{**entry, "name": name} for name, entry in found.items() if name != path]


def _modified_ms(entry: Mapping[str, Any], unknown_ms: int) -> int:
    """Return when a file was changed; now, if the file system does not say: then nothing is too old."""
    for name in ("mtime", "LastModified", "last_modified", "updated", "modified", "created"):
        value = entry.get(name)
        if isinstance(value, dt.datetime):
            return round(value.timestamp() * 1000)
        if isinstance(value, int | float):
            return round(value * 1000)
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                return round(dt.datetime.fromisoformat(value).timestamp() * 1000)
    return unknown_ms


_CONFLICTS = {409, 412}


def is_conflict(error: BaseException) -> bool:
    """True if an exception of any library says that the name is taken."""
    return any(map(_is_conflict, _causes(error)))


def _is_conflict(error: BaseException) -> bool:
    return isinstance(error, FileExistsError) or _status_of(error) in _CONFLICTS


def _causes(error: BaseException, *, contexts: bool = True) -> Iterator[BaseException]:
    """Yield an exception and what it was raised from; `contexts`: also what was handled meanwhile."""
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        seen.append(cause)
        yield cause
        cause = cause.__cause__ or (cause.__context__ if contexts else None)


def _status_of(error: BaseException) -> int:
    """Return the HTTP status that an exception of a client library has; 0 if none."""
    response: Any = getattr(error, "response", None)
    if isinstance(response, Mapping):  # botocore's
        found: Any = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    else:
        found = next(
            (value for name in ("status", "status_code", "code") if (value := getattr(error, name, None))), 0
        )
    return int(found) if str(found).isdecimal() else 0


# --- store -------------------------------------------------------------------------------------------


class FsspecStore(ObjectStore):
    """See Store."""

    client: FsspecClient

    def __init__(self, url: str, options: FsspecOptions, clock: Clock | None = None) -> None:
        url = parse_fsspec_url(url)
        super().__init__(FsspecClient(url, options, clock or SystemClock()), url, "", options)

    @property
    def fix_unconditional(self) -> str:
        return "Use a directory, s3://, gs://, abfss:// or az://; see docs/filesystems.md"

    def try_requests(self) -> None:
        """Race two processes, and make each kind of request once, for a new root and for `doctor`.

        Raises:
            StorageError: STORAGE_UNSUPPORTED: the file system lacks what a root needs.
        """
        race(self.client, self.url)

    def put_lifetime_ms(self) -> None:
        return None


def race(client: FsspecClient, url: str) -> None:
    """Let two processes create the same names, ROUNDS times, and try the other requests; leave nothing.

    Raises:
        StorageError: STORAGE_UNSUPPORTED, with what is missing.
    """
    directory = trial_key("")
    names = [f"{directory}/{number}" for number in range(ROUNDS)]
    made = [f"{directory}/trial", directory, TEMPORARY_DIRECTORY]
    if not _is_there(client):
        made.append("")
    try:
        missing = _run_race(client, names)
        if not missing:
            try_requests(client, "", url, key=made[0])
    finally:
        _remove(client, url, made, names)
    if missing:
        raise StorageError(
            "STORAGE_UNSUPPORTED",
            f"{url}: the file system {type(client.file_system()).__name__} lacks what commits need: "
            f"{missing}",
            fix="Use a directory, s3://, gs://, abfss:// or az://; see docs/filesystems.md",
        )


def _run_race(client: FsspecClient, names: Sequence[str]) -> str:
    """Return what is missing; "" if nothing is."""
    kind = type(client.file_system())
    task = {
        "module": kind.__module__,
        "class": kind.__qualname__,
        "url": client.url,
        "options": dict(client.options.given),
        "bytes": RACE_BYTES,
    }
    with contextlib.ExitStack() as stack:
        racers = [stack.enter_context(_Racer(json.dumps({**task, "number": number}))) for number in range(2)]
        for racer in racers:
            if (problem := racer.answer()) != "ready":
                return f"a second process that opens it ({problem})"
        for name in names:
            for racer in racers:
                racer.say(client._path(name))
            for racer in racers:
                racer.answer()  # both have seen that it is missing
            for racer in racers:
                racer.say("")
            outcomes = [racer.answer() for racer in racers]
            if (missing := _missing(outcomes)) is not None:
                return missing
    return ""


def _missing(outcomes: Sequence[str]) -> str | None:
    """Return what the outcomes of a round show to be missing; None if nothing."""
    if "torn" in outcomes:
        return "a file that is visible before its content is complete"
    failed = [outcome for outcome in outcomes if outcome.startswith("error: ")]
    if failed:
        return f"exclusive creation, pipe_file(mode='create') or open('xb'): {failed[0]}"
    if "replaced" in outcomes:
        return "exclusive creation: an existing file was replaced"
    winners = outcomes.count("created")
    if winners != 1:
        return f"exclusive creation: {winners} of two processes created the same file, expected one"
    return None


class _Racer:
    """A process that creates the files it is given, one a line."""

    def __init__(self, task: str) -> None:
        self._task = task

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(  # noqa: S603 - ourselves
            [sys.executable, "-c", _RACER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._timer = threading.Timer(_RACE_SECONDS, self._process.kill)
        self._timer.daemon = True
        self._timer.start()
        self.say(json.dumps(sys.path))
        self.say(self._task)
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with contextlib.suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]  # PIPE
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()  # type: ignore[union-attr]  # PIPE

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended: `answer` says so
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()

    def answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip() or "error: the process ended, or hung"


# The options come on standard input, since other users of the machine can read a command line.
_RACER = """
import json, sys
sys.path[:] = json.loads(sys.stdin.readline())
from sparklog.storage.fsspec_race import run
run(json.loads(sys.stdin.readline()))
"""


def _is_there(client: FsspecClient) -> bool:
    try:
        return bool(client.file_system().exists(client.path))
    except Exception:  # noqa: BLE001 - of any library; the race will say
        return True


def _remove(client: FsspecClient, url: str, directories: Sequence[str], names: Sequence[str]) -> None:
    """Best effort. Only empty directories go."""
    with contextlib.suppress(SparklogError):
        client.delete_many(url, names)
    for directory in directories:
        with contextlib.suppress(Exception):
            client.file_system().rmdir(client._path(directory).rstrip("/"))
