"""A store in a directory of HDFS, over WebHDFS, the REST interface of NameNodes, without Java.

A file's name is there before its bytes, so CREATE alone would show half a commit. put_if_absent therefore is

    1. CREATE .tmp/<hash of the name>.<random>, whole, closed and forced to the DataNodes' disks
    2. ask the guard
    3. RENAME it to its name, without overwriting: the NameNode does that atomically, and one caller wins

1 has a new name at each attempt, so a lost answer leaves a file without meaning, which is swept. After a lost
answer of 3 the temporary file is deleted: if it was still there, the rename has not happened, and cannot any
more. If not, the outcome is indefinite, and the caller repeats the same bytes and compares. A refusal counts
only if the file was still there, or the name does not exist.
abort_puts deletes the temporary files of a name, so that step 3 of a stalled put fails whenever it arrives.

A large file waits in a local temporary file, and is then put in the same way.
Invariants: no token appears in a message. Listings of one directory ascend.
Not here: Kerberos; several NameNodes; HttpFS, whose renames have no options.
Concurrency: any thread and process.
Sources: Hadoop's WebHDFS REST API; NamenodeWebHdfsMethods, FSDirRenameOp (rename2); docs/object-stores.md.
"""

import contextlib
import dataclasses
import functools
import getpass
import hashlib
import mmap
import os
import secrets
import tempfile
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, ClassVar, cast

from sparklog.clock import Clock, SystemClock
from sparklog.errors import InvalidRequestError, NotFoundError, RetriableError, StorageError
from sparklog.storage.base import TEMPORARY_DIRECTORY, OnFailed, StoredFile, raise_it
from sparklog.storage.object_client import Listed, Outcome, Page, PageOrder, Upload, WrongAnswerError
from sparklog.storage.object_options import ObjectOptions, from_environment
from sparklog.storage.object_probe import try_requests
from sparklog.storage.object_store import ObjectStore
from sparklog.storage.rest_client import (
    Answer,
    AnswerError,
    Request,
    RestClient,
    by_status,
    no_answer_code,
    parse_json,
)
from sparklog.storage.root_rules import HdfsPlace, parse_hdfs_url

# --- options -----------------------------------------------------------------------------------------


_ENVIRONMENT = {
    "FSSPEC_WEBHDFS_ENDPOINT_URL": "endpoint_url",
    "HADOOP_USER_NAME": "user",
    "SPARKLOG_CACHE_DIR": "cache_dir",
}
_KERBEROS = (
    "sparklog has no Kerberos: give a delegation token (hdfs fetchdt, the storage option token), or an "
    "endpoint that needs none"
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HdfsOptions(ObjectOptions):
    """How to reach HDFS. See ObjectOptions; names as in fsspec's webhdfs.

    Fields:
        endpoint_url: of WebHDFS; None: the URL's host, with port 9870 for hdfs://.
        user: for simple authentication; None: this process's user.
        token: a delegation token, in place of the user.
        kerberos: only false.
    """

    store: ClassVar[str] = "an hdfs://"
    secret_fields: ClassVar[tuple[str, ...]] = ("token",)

    user: str | None = None
    token: str | None = dataclasses.field(default=None, repr=False)
    kerberos: bool = False


def parse_hdfs_options(
    given: Mapping[str, Any] | None, environment: Mapping[str, str] | None = None
) -> HdfsOptions:
    """Parse the options of an hdfs:// root.

    Raises:
        InvalidRequestError: an unknown or malformed option, or Kerberos. Values are never quoted.
    """
    values = from_environment(_ENVIRONMENT, environment)
    values.update({name: value for name, value in (given or {}).items() if value is not None})
    options = HdfsOptions.of(values)
    if options.kerberos:
        raise InvalidRequestError("INVALID_OPTION", "storage option kerberos: not supported", fix=_KERBEROS)
    return options


# --- answers -----------------------------------------------------------------------------------------


_REDIRECT = 307
# The NameNode says so before it does anything.
_NOT_NOW = {"SafeModeException", "StandbyException", "RetriableException", "ObserverRetryOnActiveException"}
_PERMANENT = {
    "AccessControlException",
    "AuthorizationException",
    "DSQuotaExceededException",
    "InvalidPathException",
    "InvalidToken",
    "MaxDirectoryItemsExceededException",
    "NSQuotaExceededException",
    "ParentNotDirectoryException",
    "PathComponentTooLongException",
    "PathIsNotEmptyDirectoryException",
    "SecurityException",
}


class NothingHappenedError(OSError):
    """An attempt without a definite answer that cannot take effect any more."""


class NameTakenError(OSError):
    """The name exists, perhaps by the attempt itself: the content decides."""


class NoOptionsError(OSError):
    """The server has renamed the file, or not, without looking at the options of the rename."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """A file or directory as the NameNode lists it; the name of its own status is empty."""

    name: str
    size: int
    modified_ms: int
    is_directory: bool


def _parse_entry(found: Any) -> _Entry:
    """Raises WrongAnswerError."""
    try:
        entry = _Entry(
            name=found["pathSuffix"],
            size=found["length"],
            modified_ms=found["modificationTime"],
            is_directory={"DIRECTORY": True, "FILE": False}[found["type"]],
        )
    except (KeyError, TypeError) as error:
        raise WrongAnswerError(f"a status without {error}, or of an unknown kind") from None
    numbers = (entry.size, entry.modified_ms)
    if not all(type(number) is int and 0 <= number < 1 << 63 for number in numbers):
        raise WrongAnswerError("a status with a malformed number")
    if type(entry.name) is not str or "/" in entry.name:
        raise WrongAnswerError("a status with a malformed name")
    return entry


def _parse(answer: Answer, *path: str) -> Any:
    """Return a part of an answer in JSON. Raises WrongAnswerError."""
    try:
        found = parse_json(answer.data)
        for name in path:
            found = found[name]
    except (ValueError, KeyError, TypeError):
        raise WrongAnswerError(f"{len(answer.data)} bytes without {'.'.join(path)}") from None
    return found


# --- client ------------------------------------------------------------------------------------------


class HdfsClient(RestClient):
    """A directory of HDFS, accessed with given options. Keys are paths from the file system's root."""

    parts_in_flight: ClassVar[int] = 1
    starts_after: ClassVar[bool] = False  # only within a directory
    refusal_fix: ClassVar[str] = (
        "Give the user rights to the directory (hdfs dfs -chown, storage option user, HADOOP_USER_NAME). "
        "Where the answer is 401, Kerberos is on: " + _KERBEROS
    )

    def __init__(self, place: HdfsPlace, options: HdfsOptions, clock: Clock) -> None:
        self.options = options
        self._temporary = f"{place.prefix}/{TEMPORARY_DIRECTORY}".lstrip("/")
        self._user = options.user or ("" if options.token else _own_user())
        super().__init__(options.endpoint_url or place.endpoint, options, clock)

    def after_fork_in_child(self) -> None:
        super().after_fork_in_child()
        self._waiting: dict[str, IO[bytes]] = {}  # large files, by their upload's state

    @property
    def identity(self) -> str:
        return self.endpoint

    def sign(self, request: Request) -> tuple[Mapping[str, str], Mapping[str, str]]:
        who = {"delegation": self.options.token} if self.options.token else {"user.name": self._user}
        return {**request.query, **who}, request.headers

    def _send_data(self, request: Request) -> Answer:
        """Send a request that a DataNode serves, and its body: the NameNode names the DataNode."""
        first = dataclasses.replace(request, body=None, accepts=(_REDIRECT,))
        answer = self.send(first)
        if answer.status != _REDIRECT:
            raise WrongAnswerError(f"an answer {answer.status}, expected a redirection to a DataNode")
        target = answer.headers.get("location", "")
        schemes = {"https"} if self.endpoint.startswith("https:") else {"http", "https"}
        if _scheme(target) not in schemes:  # a token must not go on in the clear
            raise WrongAnswerError(f"a redirection to no {' or '.join(sorted(schemes))} address")
        headers = {"content-type": "application/octet-stream"} if request.body is not None else {}
        with self._permits:
            return self._exchange(request, target, headers)

    # --- putting -------------------------------------------------------------------------------------

    def create(self, key: str, data: bytes, guard: Callable[[], bool] | None) -> None:
        self._publish(self.write_temporary(key, data), key, guard)

    def put(self, url: str, key: str, data: bytes) -> None:
        def attempt() -> None:
            self._publish(self.write_temporary(key, data), key, None, overwrite=True)

        self._repeat("put_object", url, attempt)

    def write_temporary(self, key: str, data: bytes) -> str:
        """Create a file under a new name, with its bytes on disk; return its key."""
        temporary = f"{self._temporary}/{put_key(key)}{secrets.token_hex(8)}"
        request = Request(
            name="put_object",
            method="PUT",
            path=_path(temporary),
            query={"op": "CREATE", "overwrite": "false", "createflag": "CREATE,SYNC_BLOCK"},
            body=data,
        )
        try:
            answer = self._send_data(request)
            if answer.status != 201:  # a page of a proxy: the file may still be growing
                raise WrongAnswerError(f"an answer {answer.status}, expected 201")
        except self.failures as error:
            if self.outcome_of(error) is Outcome.REFUSED:
                raise
            raise NothingHappenedError(self.describe(error)) from error
        return temporary

    def _publish(
        self, temporary: str, key: str, guard: Callable[[], bool] | None, *, overwrite: bool = False
    ) -> None:
        """Rename a temporary file to its name. It is gone afterwards, or is swept."""
        request = Request(
            name="rename_object",
            method="PUT",
            path=_path(temporary),
            query={
                "op": "RENAME",
                "destination": f"/{key}",
                "renameoptions": "OVERWRITE" if overwrite else "NONE",
            },
        )
        try:
            self._rename(request, key, guard)
        except self.failures as error:
            meant = self._meaning(error, temporary, key, overwrite=overwrite)
            if meant is error:
                raise
            raise meant from error
        except BaseException:  # of the guard
            with contextlib.suppress(*self.failures):
                self._delete_once(temporary)
            raise

    def _meaning(self, error: Exception, temporary: str, key: str, *, overwrite: bool) -> Exception:
        """Remove the temporary file of a rename that failed; return the error that this shows.

        A proxy or a router may send a rename twice, and return the second answer: there is no such file. So
        "no such file" and "IOException" prove nothing if the temporary file is gone.
        """
        outcome = self.outcome_of(error)
        try:
            was_there = self._delete_once(temporary)
        except self.failures:
            is_definite = outcome is not Outcome.MISSING and not _is_vague(error)
            return error if is_definite else _unknown(self.describe(error))
        if was_there:
            is_repeated = outcome in {Outcome.BUSY, Outcome.MISSING}
            return NothingHappenedError(self.describe(error)) if is_repeated else error
        if outcome in {Outcome.TAKEN, Outcome.UNSENT, Outcome.BUSY}:
            return error
        if overwrite:
            return _unknown(self.describe(error))
        # Without its file no rename happens any more.
        try:
            self.status(key)
        except self.failures as looked:
            if self.outcome_of(looked) is not Outcome.MISSING:
                return _unknown(self.describe(looked))
        else:
            return NameTakenError(self.describe(error))
        if outcome is not Outcome.MISSING:
            return error
        return RetriableError("PUT_REFUSED", f"/{key}: overtaken while writing", fix="Refresh and try again")

    def _rename(self, request: Request, key: str, guard: Callable[[], bool] | None) -> None:
        try:
            _validate_renamed(self.send(request, guard))
        except AnswerError as error:
            if self.outcome_of(error) is not Outcome.MISSING:
                raise
        else:
            return
        # The directory of the name is missing, or the temporary file.
        try:
            self._make_directory(key.rpartition("/")[0])
        except self.failures as error:
            if self.outcome_of(error) is Outcome.REFUSED:
                raise
            raise NothingHappenedError(self.describe(error)) from error
        _validate_renamed(self.send(request))

    def _make_directory(self, key: str) -> None:
        self.send(Request(name="make_directory", method="PUT", path=_path(key), query={"op": "MKDIRS"}))

    def abort_puts(self, url: str, key: str) -> None:
        """Delete the temporary files of a name. Raises StorageError."""
        prefix = put_key(key)
        # Ends with ".": the files of this name are behind it, and the first ones there.
        for entries, _ in self.batches(url, self._temporary, start_after=prefix):
            aimed = [entry.name for entry in entries if entry.name.startswith(prefix)]
            for name in aimed:
                self.delete(url, f"{self._temporary}/{name}")
            if len(aimed) < len(entries):
                return

    # --- reading -------------------------------------------------------------------------------------

    def get(self, url: str, key: str, position: int, end: int | None) -> tuple[bytes, int]:
        return self._repeat("get_object", url, lambda: self._get_once(url, key, position, end))

    def _get_once(self, url: str, key: str, position: int, end: int | None) -> tuple[bytes, int]:
        """Read a range. The size is asked for only if the range does not end the file."""
        size = None
        if position:
            size = self._size(url, key)
            end = size if end is None else min(end, size)
            if position >= end:
                return b"", size
        query = {"op": "OPEN", "offset": str(position)}
        if end is not None:
            query["length"] = str(end - position)
        answer = self._send_data(Request(name="get_object", method="GET", path=_path(key), query=query))
        if not {"content-length", "transfer-encoding"} & answer.headers.keys():
            raise WrongAnswerError("bytes without their number")
        _validate_type(answer)
        data = answer.data
        if end is not None and len(data) > end - position:
            raise WrongAnswerError(f"{len(data)} bytes, expected {end - position} at most")
        if size is None:
            is_end = end is None or len(data) < end - position
            return data, len(data) if is_end else self._size(url, key)
        if len(data) != cast("int", end) - position:
            raise WrongAnswerError(f"{len(data)} bytes from {position} on, of a file of {size} bytes")
        return data, size

    def status(self, key: str) -> _Entry:
        """Return what the NameNode knows of a file or directory. Raises one of `failures`."""
        request = Request(name="head_object", method="GET", path=_path(key), query={"op": "GETFILESTATUS"})
        return _parse_entry(_parse(self.send(request), "FileStatus"))

    def _size(self, url: str, key: str) -> int:
        entry = self.status(key)
        if entry.is_directory:
            raise NotFoundError(
                "FILE_NOT_FOUND", f"{url}: a directory, expected a file", fix="Check the name"
            )
        return entry.size

    def listed(
        self,
        url: str,
        prefix: str,
        *,
        by_directory: bool = False,
        start_after: str | None = None,
        page_size: int | None = None,  # noqa: ARG002 - the NameNode's dfs.ls.limit
        within_ms: int = 0,
    ) -> Iterator[Page]:
        order = PageOrder()
        after = start_after[len(prefix) :] if start_after and start_after.startswith(prefix) else ""
        batches = self.batches(
            url, prefix.rstrip("/"), start_after=after.partition("/")[0], within_ms=within_ms
        )
        if by_directory:
            for entries, is_last in batches:
                yield self.ordered(url, _page(prefix, entries, start_after, is_last=is_last), order)
            return
        for page in self._under(url, prefix, start_after, within_ms):
            if page.objects:
                yield self.ordered(url, page, order)
        yield Page(is_last=True)

    def _under(self, url: str, prefix: str, start_after: str | None, within_ms: int) -> Iterator[Page]:
        """Yield the files in and below a directory, as directories are ordered."""
        for entries, _ in self.batches(url, prefix.rstrip("/"), within_ms=within_ms):
            files: list[_Entry] = []
            for entry in entries:
                if not entry.is_directory:
                    files.append(entry)
                    continue
                yield _page(prefix, files, start_after, is_last=False)
                files = []
                yield from self._under(url, f"{prefix}{entry.name}/", start_after, within_ms)
            yield _page(prefix, files, start_after, is_last=False)

    def batches(
        self, url: str, directory: str, *, start_after: str = "", within_ms: int = 0
    ) -> Iterator[tuple[Sequence[_Entry], bool]]:
        """Yield (entries of a directory, whether they are the last), ascending; none if it is missing."""
        after = start_after
        while True:
            try:
                entries, is_last = self._within(
                    within_ms,
                    functools.partial(self._batch, url, directory, after),
                    functools.partial(self.storage_error, "list_objects", url),
                )
            except NotFoundError:
                entries, is_last = [], True
            yield entries, is_last
            if is_last:
                return
            if not entries or entries[-1].name <= after:
                raise self.storage_error(
                    "list_objects", url, WrongAnswerError("a batch that does not ascend")
                )
            after = entries[-1].name

    def _batch(self, url: str, directory: str, after: str, most_ms: float) -> tuple[list[_Entry], bool]:
        query = {"op": "LISTSTATUS_BATCH", **({"startAfter": after} if after else {})}
        request = Request(name="list_objects", method="GET", path=_path(directory), query=query)

        def attempt() -> tuple[list[_Entry], bool]:
            answer = self.send(request)
            found = _parse(answer, "DirectoryListing", "partialListing", "FileStatuses", "FileStatus")
            left = _parse(answer, "DirectoryListing", "remainingEntries")
            if not isinstance(found, list) or type(left) is not int:
                raise WrongAnswerError("an unreadable listing")
            entries = [_parse_entry(entry) for entry in found]
            # A file lists as itself, without a name.
            return [entry for entry in entries if entry.name], not left

        return self._repeat("list_objects", url, attempt, most_ms)

    # --- deleting ------------------------------------------------------------------------------------

    def delete(self, url: str, key: str) -> None:
        self._repeat("delete_object", url, lambda: self._delete_once(key))

    def delete_tree(self, url: str, key: str) -> None:
        """Remove a directory and all in it. Raises StorageError."""
        self._repeat("delete_object", url, lambda: self._delete_once(key, recursive=True))

    def _delete_once(self, key: str, *, recursive: bool = False) -> bool:
        """Return whether the file was there. Raises one of `failures`."""
        query = {"op": "DELETE", "recursive": str(recursive).lower()}
        request = Request(name="delete_object", method="DELETE", path=_path(key), query=query)
        return _parse(self.send(request), "boolean") is True

    def remove_directory(self, url: str, key: str) -> bool:
        """Remove a directory unless it has entries; return whether. Raises StorageError."""

        def attempt() -> bool:
            try:
                return self.status(key).is_directory and self._delete_once(key)
            except AnswerError as error:
                if error.code in {"PathIsNotEmptyDirectoryException", "FileNotFoundException"}:
                    return False
                raise

        return self._repeat("delete_object", url, attempt)

    # --- large files ---------------------------------------------------------------------------------

    def begin_upload(self, url: str, key: str) -> Upload:
        upload = Upload(url=url, key=key, state=secrets.token_hex(16))
        try:
            self._waiting[upload.state] = tempfile.TemporaryFile(prefix="sparklog-")  # noqa: SIM115 - abort_upload closes it
        except OSError as error:
            raise _local_error(url, error) from error
        return upload

    def put_part(self, upload: Upload, number: int, position: int, data: bytearray, *, is_last: bool) -> None:  # noqa: ARG002 - for stores that keep parts
        file = self._waiting[upload.state]
        rest = memoryview(data)
        try:
            while rest:
                written = os.pwrite(file.fileno(), rest, position)
                position, rest = position + written, rest[written:]
        except OSError as error:
            raise _local_error(upload.url, error) from error

    def complete_upload(self, upload: Upload) -> None:
        try:
            file = self._waiting[upload.state]
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
                data = cast("bytes", view)  # bytes-like
                self.resolve(lambda: self.put_once(upload.url, upload.key, data, None))
        finally:
            self.abort_upload(upload)

    def abort_upload(self, upload: Upload) -> None:
        if (file := self._waiting.pop(upload.state, None)) is not None:
            file.close()

    # --- errors --------------------------------------------------------------------------------------

    def parse_error(self, answer: Answer) -> AnswerError:
        try:
            error = parse_json(answer.data)["RemoteException"]
            # DataNodes append Java's stack.
            return AnswerError(
                answer, str(error["exception"]), str(error.get("message", "")).partition("\n")[0]
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            return AnswerError(answer, "", no_answer_code(answer))

    def outcome_of_answer(self, error: AnswerError) -> Outcome:
        code, status = error.code, error.answer.status
        if code == "FileAlreadyExistsException":
            return Outcome.TAKEN
        if code == "FileNotFoundException":
            return Outcome.MISSING
        if code in _NOT_NOW:
            return Outcome.UNSENT
        if code in _PERMANENT or (code and status == 403 and error.request == "rename_object"):
            return Outcome.REFUSED
        if code and status == 403:  # IOException and its kinds: a DataNode that is gone, ...
            return Outcome.BUSY
        return by_status(status, is_stores=bool(code))

    def outcome_of(self, error: Exception) -> Outcome:
        if isinstance(error, NameTakenError):
            return Outcome.TAKEN
        if isinstance(error, NoOptionsError):
            return Outcome.REFUSED
        return Outcome.UNSENT if isinstance(error, NothingHappenedError) else super().outcome_of(error)

    def storage_error(self, action: str, url: str, error: Exception) -> StorageError:
        if isinstance(error, NoOptionsError):
            return StorageError(
                "STORAGE_UNSUPPORTED",
                f"{url}: {error}",
                fix="Use another store, or a newer version of it; docs/object-stores.md has the list",
            )
        return super().storage_error(action, url, error)

    def is_bucket_missing(self, error: Exception) -> bool:  # noqa: ARG002 - there are none
        return False


def _own_user() -> str:
    """Raises InvalidRequestError: a container may run with a number that has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise InvalidRequestError(
            "INVALID_OPTION",
            "storage option user: not given, and the user of this process has no name",
            fix="Give the storage option user, or HADOOP_USER_NAME",
        ) from None


def put_key(key: str) -> str:
    """Return how the names of a key's temporary files begin."""
    return f"{hashlib.sha256(key.encode()).hexdigest()[:32]}."


def _path(key: str) -> str:
    return f"/webhdfs/v1/{urllib.parse.quote(key, safe='/')}"


def _scheme(url: str) -> str:
    with contextlib.suppress(ValueError):
        return urllib.parse.urlsplit(url).scheme
    return ""


def _page(prefix: str, entries: Sequence[_Entry], start_after: str | None, *, is_last: bool) -> Page:
    objects = [
        Listed(f"{prefix}{entry.name}", entry.size, entry.modified_ms)
        for entry in entries
        if not entry.is_directory
    ]
    if start_after is not None:
        objects = [listed for listed in objects if listed.key > start_after]
    directories = [f"{prefix}{entry.name}/" for entry in entries if entry.is_directory]
    return Page(objects=objects, directories=directories, is_last=is_last)


def _validate_renamed(answer: Answer) -> None:
    """Refuse the answer of a rename without options, which neither overwrites nor says why it failed."""
    if not answer.data:
        _validate_type(answer)
        return
    _parse(answer, "boolean")
    raise NoOptionsError("the server ignores renameoptions, as HttpFS does: commits and hints need them")


def _is_vague(error: Exception) -> bool:
    """True for an IOException, of which NameNodes and routers have many kinds, and for what is not theirs."""
    if isinstance(error, AnswerError):
        return error.code not in {*_PERMANENT, *_NOT_NOW, "FileAlreadyExistsException"}
    return isinstance(error, NoOptionsError)


def _unknown(text: str) -> Exception:
    return OSError(f"unknown whether the file was renamed: {text}")


def _validate_type(answer: Answer) -> None:
    """Refuse what is not bytes, though the status is a success: a page of a proxy, or an empty one."""
    found = answer.headers.get("content-type", "")
    if found.partition(";")[0].strip().lower() != "application/octet-stream":
        raise WrongAnswerError(f"an answer of type {found[:40]!r}, expected application/octet-stream")


def _local_error(url: str, error: OSError) -> StorageError:
    return StorageError(
        "STORAGE_FAILED",
        f"{url}: a large file waits in {tempfile.gettempdir()}: {error}",
        fix="Free space there, or set TMPDIR",
    )


# --- store -------------------------------------------------------------------------------------------


class HdfsStore(ObjectStore):
    """See Store."""

    client: HdfsClient

    def __init__(self, url: str, options: HdfsOptions, clock: Clock | None = None) -> None:
        place = parse_hdfs_url(url)
        super().__init__(HdfsClient(place, options, clock or SystemClock()), place.url, place.prefix, options)

    @property
    def fix_unconditional(self) -> str:
        return "Use a server that keeps renameoptions=NONE, as a NameNode does"

    def abort_puts(self, name: str) -> None:
        self.client.abort_puts(self._url(name), self._key(name))

    def put_lifetime_ms(self) -> int:
        return 0

    def try_requests(self) -> None:
        try:
            try_requests(self.client, self._prefix, self.url)
        finally:
            with contextlib.suppress(StorageError):
                self._remove_empty()

    def _remove_empty(self) -> None:
        """Remove the directories that probes leave."""
        temporary = f"{self._prefix}{TEMPORARY_DIRECTORY}/"
        for page in self.client.listed(self.url, temporary, by_directory=True):
            for key in page.directories:
                self.client.remove_directory(self.url, key.rstrip("/"))
        self.client.remove_directory(self.url, temporary.rstrip("/"))

    def walk(
        self, enters: Callable[[str], bool], failed: OnFailed = raise_it
    ) -> Iterator[Sequence[StoredFile]]:
        waiting = [("", 0)]
        while waiting:
            name, modified_ms = waiting.pop()
            inside = f"{name}/" if name else ""
            is_empty = True
            try:
                for entries, _ in self.client.batches(self._url(name), f"{self._prefix}{name}".rstrip("/")):
                    is_empty = is_empty and not entries
                    files = [
                        StoredFile(f"{inside}{entry.name}", entry.size, entry.modified_ms)
                        for entry in entries
                        if not entry.is_directory
                    ]
                    if files:
                        yield files
                    for entry in entries:
                        below = f"{inside}{entry.name}"
                        if entry.is_directory and below != TEMPORARY_DIRECTORY and enters(below):
                            waiting.append((below, entry.modified_ms))
            except StorageError as error:
                failed(name, error)
                continue
            if is_empty and name:
                yield [StoredFile(inside, 0, modified_ms)]

    def remove_directory(self, prefix: str) -> bool:
        return self.client.remove_directory(self._url(prefix), self._key(prefix))

    def delete_directory(self, prefix: str) -> None:
        self.client.delete_tree(self._url(prefix), self._key(prefix))
