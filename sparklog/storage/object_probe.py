"""Probes of an object store: conditional writes, and the requests that maintenance needs.

`probe_put_if_absent` runs once per bucket and process, before its first conditional put: the store must let
exactly one of several racing writers create a name. Two threads put one key, then one puts it again. A store
that ignores the condition fails the second part for sure.
Not here: rare races, lost once in a thousand; no finite probe finds those.
After a crash: an object or an upload under .tmp/ may be left, without meaning; a vacuum removes it.
"""

import contextlib
import secrets
import threading
from typing import Protocol

from sparklog.errors import AlreadyExistsError, SparklogError, StorageError
from sparklog.storage.base import TEMPORARY_DIRECTORY, IndefinitePutError
from sparklog.storage.object_client import ObjectClient, Upload

RACERS = 2  # three or more block for seconds on some stores
passed: set[str] = set()


def probe_put_if_absent(client: ObjectClient, prefix: str, url: str, fix: str = "Use another store") -> None:
    """Race the store, unless this process has done so.

    Raises:
        StorageError: STORAGE_UNSUPPORTED: it lets two writers win. STORE_UNAVAILABLE: no answers.
    """
    with client.probe_lock:
        bucket = client.identity
        if bucket in passed:
            return
        try:
            client.resolve(lambda: _probe(client, prefix, url, fix))
        except IndefinitePutError as error:
            raise StorageError(
                "STORE_UNAVAILABLE",
                f"{url}: no definite answers while probing for conditional writes; the last: {error.message}",
                fix="Check the store, and retry",
            ) from error
        passed.add(bucket)


def _probe(client: ObjectClient, prefix: str, url: str, fix: str) -> None:
    """Run one race. Raises IndefinitePutError if the answers do not decide it."""
    key = f"{prefix}{TEMPORARY_DIRECTORY}/probe-{secrets.token_hex(8)}"
    winners = _race(client, key, url)
    try:
        client.put_once(url, key, b"again", None)
        winners = RACERS + 1
    except AlreadyExistsError:
        pass
    with contextlib.suppress(StorageError):
        client.delete(url, key)
    if winners > 1:
        raise StorageError(
            "STORAGE_UNSUPPORTED",
            f"{url}: several writers created the same object, expected one to win and the others to get "
            "412 (or 409) for a conditional put: commits would be lost",
            fix=fix,
        )


def _race(client: ObjectClient, key: str, url: str) -> int:
    """Return how many racers won, or may have; at least one."""
    outcomes: list[SparklogError | None] = []
    barrier = threading.Barrier(RACERS)

    def put(number: int) -> None:
        barrier.wait()
        try:
            client.put_once(url, key, b"probe %d" % number, None)
        except SparklogError as error:
            outcomes.append(error)
        else:
            outcomes.append(None)

    threads = [threading.Thread(target=put, args=(number,), daemon=True) for number in range(RACERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in outcomes:
        if error is not None and not isinstance(error, AlreadyExistsError | IndefinitePutError):
            raise error
    winners = outcomes.count(None)
    unsure = [error for error in outcomes if isinstance(error, IndefinitePutError)]
    if unsure and not winners:
        raise unsure[0]
    if not winners:
        raise IndefinitePutError("PUT_INDEFINITE", f"{url}: a race without a winner", fix="Repeat it")
    return winners


# --- requests ----------------------------------------------------------------------------------------
#
# Each kind of request that a root needs, once, when it is created, and in `sparklog doctor`. Without it, a
# store that refuses to delete, say, would be found by the first vacuum, a week later.
# Not here: S3's requests (s3_probe.py), of which more can be missing.


def try_requests(client: ObjectClient, prefix: str, url: str, *, key: str = "") -> None:
    """Make each kind of request once, for objects whose names begin with `key`, or with a new one.

    Raises:
        StorageError: STORAGE_UNSUPPORTED: the store refuses a request, or ignores it. STORAGE_REFUSED: a
            permission is missing. STORE_UNAVAILABLE, STORE_ANSWER_WRONG, ...: as for every request.
    """
    run_trial(_Trial(client, url, key or trial_key(prefix)), url, "docs/object-stores.md has the list")


class Trial(Protocol):
    """Requests that are tried.

    Fields:
        purpose: of the request in progress.
    """

    purpose: str

    def run(self) -> None:
        """Make them. Raises StorageError."""

    def clean(self) -> None:
        """Remove what is left; best effort."""


def trial_key(prefix: str) -> str:
    """Return the name of a trial's objects, which a vacuum removes."""
    return f"{prefix}{TEMPORARY_DIRECTORY}/probe-{secrets.token_hex(8)}"


def run_trial(trial: Trial, url: str, page: str) -> None:
    """Run it; `page` says where the list of requests is. Raises as `try_requests`."""
    try:
        trial.run()
    except StorageError as error:
        trial.clean()
        if error.code not in {"STORAGE_FAILED", "STORAGE_UNSUPPORTED", "FILE_NOT_FOUND", "FILE_EXISTS"}:
            raise
        raise StorageError(
            "STORAGE_UNSUPPORTED",
            f"{url}: the store lacks a request that a root needs: {trial.purpose}: {error.message}",
            fix=f"Use another store, or a newer version of it; {page}",
        ) from error


class _Trial:
    """Three small objects, the second uploaded in parts, and an aborted upload.

    Fields:
        purpose: of the request in progress.
    """

    def __init__(self, client: ObjectClient, url: str, key: str) -> None:
        self._client, self._url, self._prefix = client, url, f"{key}/"
        self._keys = [f"{key}/{number}" for number in range(3)]
        self._uploads: list[Upload] = []
        self.purpose = ""

    def run(self) -> None:
        first, second, third = self._keys
        client, url = self._client, self._url
        self.purpose = "to write an object"
        for key in (first, third):
            client.put(url, key, b"probe")
        self.purpose = "to upload an object in parts"
        upload = self._begin(second)
        client.put_part(upload, 1, 0, bytearray(b"0123456789"), is_last=True)
        client.complete_upload(upload)
        self._uploads.remove(upload)
        self.purpose = "to abort an upload"
        given_up = self._begin(f"{first}-0")
        client.abort_upload(given_up)
        self._uploads.remove(given_up)
        self.purpose = "to delete objects"
        client.delete(url, given_up.key)  # a file system shows a name as soon as it is opened
        self.purpose = "to read a part of an object"
        self._expect(client.get(url, second, 2, 5) == (b"234", 10))
        self._expect(client.get(url, second, 10, 11)[0] == b"")
        self.purpose = "to list objects in pages"
        self._expect(self._listed(page_size=2) == self._keys)
        if client.starts_after:
            self.purpose = "to list objects after a name"
            self._expect(self._listed(start_after=second) == [third])
        self.purpose = "to delete objects"
        client.delete(url, first)
        client.delete_many(url, [second, third])
        self._expect(self._listed() == [])

    def _begin(self, key: str) -> Upload:
        upload = self._client.begin_upload(self._url, key)
        self._uploads.append(upload)
        return upload

    def _listed(self, *, start_after: str | None = None, page_size: int | None = None) -> list[str]:
        pages = self._client.listed(self._url, self._prefix, start_after=start_after, page_size=page_size)
        return sorted(listed.key for page in pages for listed in page.objects)

    def _expect(self, is_right: bool) -> None:
        if not is_right:
            raise StorageError(
                "STORAGE_UNSUPPORTED",
                "the store confirmed the request without effect",
                fix="Use another store",
            )

    def clean(self) -> None:
        """Best effort."""
        for upload in self._uploads:
            with contextlib.suppress(StorageError):
                self._client.abort_upload(upload)
        for key in (*self._keys, *(upload.key for upload in self._uploads)):
            with contextlib.suppress(StorageError):
                self._client.delete(self._url, key)
