"""Does this store let exactly one of several racing writers create a name? Commits depend on it.

Asked once per bucket and process, before its first conditional put: two threads put one key, then one
puts it again. A store that ignores If-None-Match fails the second part for sure.
Not here: races that a store loses once in a thousand; no probe that ends finds those.
After a crash: an object under .tmp/ may be left; it means nothing.
"""

import contextlib
import secrets
import threading

from sparklog.errors import AlreadyExistsError, SparklogError, StorageError
from sparklog.storage.base import IndefinitePutError
from sparklog.storage.names import TEMPORARY_DIRECTORY
from sparklog.storage.s3_client import S3Client

RACERS = 2  # three or more wait for seconds on some stores
passed: set[str] = set()


def probe_put_if_absent(client: S3Client, prefix: str, url: str) -> None:
    """Race the store, unless that has been done.

    Raises:
        StorageError: STORAGE_UNSUPPORTED: it lets two writers win. STORE_UNAVAILABLE: no answers.
    """
    with client.probe_lock:
        bucket = client.identity
        if bucket in passed:
            return
        try:
            client.resolve(lambda: _probe(client, prefix, url))
        except IndefinitePutError as error:
            raise StorageError(
                "STORE_UNAVAILABLE",
                f"{url}: no definite answers while probing for conditional writes; the last: {error.message}",
                fix="Check the store, and try again",
            ) from error
        passed.add(bucket)


def _probe(client: S3Client, prefix: str, url: str) -> None:
    """One race. IndefinitePutError: the answers do not decide it."""
    key = f"{prefix}{TEMPORARY_DIRECTORY}/probe-{secrets.token_hex(8)}"
    winners = _race(client, key, url)
    try:
        client.put_once(url, key, b"again", None)
        winners = RACERS + 1
    except AlreadyExistsError:
        pass
    with contextlib.suppress(StorageError):
        client.call("delete_object", url, Key=key)
    if winners > 1:
        raise StorageError(
            "STORAGE_UNSUPPORTED",
            f"{url}: several writers created the same object, expected one to win and the others to get "
            "412 for If-None-Match: commits would be lost",
            fix="Use a store with conditional writes: AWS S3, MinIO, SeaweedFS 4.17 or newer, ...",
        )


def _race(client: S3Client, key: str, url: str) -> int:
    """How many won, or may have; at least one."""
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
