"""An object store in memory, at the other end of a network.

It may look at a request's date, which its sender took from its wall clock; for a minute it may fail. As in
storage/s3.py, requests that may be repeated are; a put of a commit is tried once, and repeated only while no
connection was made. What the network does to a request is in network.py.
Concurrency: processes of one world; each has its own RemoteStore over one Server.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from botocore.exceptions import BotoCoreError, ClientError

from sparklog.errors import AlreadyExistsError, NotFoundError, RetriableError, StorageError
from sparklog.metadata.documents.properties import REQUESTS, commit_of
from sparklog.storage import BytesLike, IndefinitePutError, StoredFile
from sparklog.storage.base import UNFINISHED_MS, Hold, NoLock, OnFailed, StoreTraits, first_left_out, raise_it
from sparklog.storage.memory import MemoryReadFile
from sparklog.storage.object_client import Outcome
from sparklog.storage.s3_client import outcome_of
from tests.simulation.network import LATE_US, Network
from tests.simulation.world import MINUTE_US, START_MS, SimProcess, World

T = TypeVar("T")
MAX_SKEW_US = 15 * MINUTE_US
PUT_LIFETIME_MS = 30 * 60_000  # of one that was dated as far ahead as is accepted
_ATTEMPTS = 8
_PORTION = 50  # of a walk


@dataclass(slots=True)
class SimObject:
    """An object; it never changes, it is only replaced."""

    content: bytes
    modified_us: int


class Server:
    """What all processes share."""

    def __init__(self, world: World, *, checks_dates: bool) -> None:
        self.world = world
        self.checks_dates = checks_dates
        self.network = Network(world)
        self.files: dict[str, SimObject] = {}
        self.violations: list[str] = []
        self.commits: dict[str, bytes] = {}  # every commit there ever was

    def refuses(self, date_us: int) -> bool:
        """Is a request of this date from a machine whose clock is wrong, or was it under way for too long?"""
        return self.checks_dates and abs(self.world.now_us - date_us) > MAX_SKEW_US

    def put(self, name: str, data: bytes, date_us: int, *, conditional: bool) -> str:
        now = self.world.now_us
        if self.refuses(date_us):
            return "refused"
        if conditional and name in self.files:
            return "taken"
        self.files[name] = SimObject(bytes(data), now)
        if name.startswith(REQUESTS):
            self.world.met["requests posted"] += 1
        elif commit_of(name) is not None:
            self.world.met["requests settled"] += data.count(b'"request_applied"')
            if self.commits.setdefault(name, data) != data:
                self.violations.append(f"{name}: another commit took a number that had been used")
        return "done"

    def damage(self, name: str, content: bytearray) -> None:
        """The store gives back something else."""
        self.files[name].content = bytes(content)


class RemoteStore:
    """See Store."""

    def __init__(self, server: Server, process: SimProcess, *, refresh_interval_ms: int) -> None:
        self.url = "sim:remote"
        self.traits = StoreTraits(
            is_remote=True, appends_after_sync=False, refresh_interval_ms=refresh_interval_ms
        )
        self._server = server
        self._network = server.network
        self._world = server.world
        self._process = process

    # --- putting -------------------------------------------------------------------------------------

    def put_if_absent(self, name: str, data: bytes, *, guard: Callable[[], bool] | None = None) -> None:
        for attempt in range(_ATTEMPTS):
            self._process.refuse_if_dead()
            date_us = self._process.date_us
            # A process can be stopped between signing and asking, and between asking and sending.
            self._process.wait_us(0)
            if guard is not None and not guard():
                raise RetriableError("PUT_REFUSED", f"{name}: overtaken before it was sent", fix="Try again")
            self._process.wait_us(0)
            try:
                answer = self._put(name, data, date_us)
            except (BotoCoreError, ClientError) as error:
                if outcome_of(error) is not Outcome.UNSENT:
                    raise IndefinitePutError("PUT_INDEFINITE", f"{name}: {error}", fix="Put again") from error
                self._process.wait_us(100_000 << attempt)
                continue
            if answer == "taken":
                raise AlreadyExistsError("FILE_EXISTS", f"{name}: exists", fix="Use another name")
            if answer == "refused":
                raise _wrong_date(name)
            return
        raise _unavailable(name)

    def _put(self, name: str, data: bytes, date_us: int) -> str:
        """One attempt: done, taken or refused; raises what botocore raises."""
        put = partial(self._server.put, name, data, date_us, conditional=True)
        kind = "put" if commit_of(name) is None else "commit"
        return self._network.send(self._process, kind, put)

    def try_requests(self) -> None:
        """This store knows all."""

    def release_reserve(self) -> bool:
        """There is none."""
        return False

    def restore_reserve(self) -> None:
        """Nobody counts the space here."""

    def sync_name(self, name: str) -> None:
        """An object that is there is durable."""

    def append_file(self, name: str, *, mapped: bool = False) -> "RemoteAppendFile":
        self._process.refuse_if_dead()
        return RemoteAppendFile(self, name)

    def put_hint(self, name: str, data: BytesLike) -> None:
        copy, kind = bytes(data), "request" if name.startswith(REQUESTS) else "hint"
        for attempt in range(_ATTEMPTS):
            self._process.refuse_if_dead()
            put = partial(self._server.put, name, copy, self._process.date_us, conditional=False)
            with suppress(BotoCoreError, ClientError):
                if self._network.send(self._process, kind, put) == "refused":
                    raise _wrong_date(name)
                return
            self._process.wait_us(100_000 << attempt)
        raise _unavailable(name)

    def abort_puts(self, name: str) -> None:
        """Nothing can."""

    def hold(self, name: str, note: bytes) -> Hold:
        return Hold()

    def space(self) -> None:
        return None

    def put_lifetime_ms(self) -> int | None:
        return PUT_LIFETIME_MS if self._server.checks_dates else None

    def storage_now_ms(self, here_ms: int) -> int:
        del here_ms
        return START_MS + self._world.now_us // 1000

    def advisory_lock(self, prefix: str) -> NoLock:
        del prefix
        return NoLock()

    def sync_directory(self, prefix: str) -> None:
        self._process.refuse_if_dead()

    # --- what may be repeated ------------------------------------------------------------------------

    def read(self, name: str, position: int = 0, size: int | None = None) -> bytes:
        with self.open_read(name) as file:
            return file.read(position, size)

    def read_many(self, names: Sequence[str], *, max_bytes: int) -> list[bytes | None]:
        """In parallel: each read has a moment of its own, in any order, all before the answer."""
        found: dict[str, bytes | None] = {}

        def look(name: str) -> None:
            stored = self._server.files.get(name)
            found[name] = None if stored is None else stored.content[:max_bytes]

        self._request("many", lambda: None)
        for name in names:
            self._network.requests += 1
            self._world.at(self._network.latency(), lambda name=name: look(name))
        self._process.wait_us(2 * self._network.latency_us)
        return [found[name] for name in names]

    def exists(self, name: str) -> bool:
        return self._request(name, lambda: name in self._server.files)

    def top_names(self, limit: int) -> list[str]:
        return sorted({"".join(name.partition("/")[:2]) for name in self._server.files})[:limit]

    def list(
        self, prefix: str, *, recursive: bool = False, start_after: str | None = None, within_ms: int = 0
    ) -> list[StoredFile]:
        del within_ms
        start = f"{prefix}/" if prefix else ""
        return self._request(
            prefix,
            lambda: sorted(
                StoredFile(name, len(stored.content), START_MS + stored.modified_us // 1000)
                for name, stored in self._server.files.items()
                if name.startswith(start)
                and (recursive or "/" not in name[len(start) :])
                and (start_after is None or name > start_after)
            ),
        )

    def walk(
        self,
        enters: Callable[[str], bool],
        failed: OnFailed = raise_it,
    ) -> Iterator[Sequence[StoredFile]]:
        """A request for each portion, each as of its own moment."""
        after: str | None = None
        while True:
            page = self.list("", recursive=True, start_after=after)[:_PORTION]
            if not page:
                return
            yield [file for file in page if first_left_out(file.name, enters) is None]
            after = page[-1].name

    def delete_many(self, names: Sequence[str]) -> None:
        for name in names:
            self.delete(name)

    def remove_directory(self, prefix: str) -> bool:
        return False

    def delete(self, name: str) -> None:
        """It may be delivered twice."""

        def remove() -> None:
            self._server.files.pop(name, None)

        self._request(name, remove)
        if self._world.chance(self._network.fault_rate, "doubled delete"):
            self._world.at(self._world.dice.choice(LATE_US), remove)

    def delete_directory(self, prefix: str) -> None:
        for stored in self.list(prefix, recursive=True):
            self.delete(stored.name)

    def open_read(self, name: str) -> MemoryReadFile:
        stored = self._request(name, lambda: self._server.files.get(name))
        if stored is None:
            raise NotFoundError("FILE_NOT_FOUND", f"{name}: not found", fix="Look again")
        return MemoryReadFile(name, stored.content)

    def sweep_temporary(
        self, *, older_than_ms: int, unfinished_older_than_ms: int = UNFINISHED_MS, dry_run: bool = False
    ) -> int:
        del older_than_ms, unfinished_older_than_ms, dry_run
        return 0

    def _request(self, name: str, apply: Callable[[], T]) -> T:
        """One that may be repeated: by this client, until an answer comes, and by the network."""
        self._process.refuse_if_dead()
        world, network = self._world, self._network
        for attempt in range(_ATTEMPTS):
            network.requests += 1
            if world.now_us < network.fails_until_us or world.chance(network.fault_rate, "read failed"):
                self._process.wait_us(network.latency() + (100_000 << attempt))
                continue
            date_us = self._process.date_us
            self._process.wait_us(network.latency())
            if self._server.refuses(date_us):
                raise _wrong_date(name)
            result = apply()
            self._process.wait_us(network.latency())
            return result
        raise _unavailable(name)


def _wrong_date(name: str) -> StorageError:
    return StorageError("CLOCK_SKEWED", f"{name}: the request has a wrong date", fix="Set the clock")


def _unavailable(name: str) -> StorageError:
    return StorageError("STORE_UNAVAILABLE", f"{name}: no answer", fix="Look after the store")


class RemoteAppendFile:
    """See AppendFile: gathers bytes, and sync() makes the object."""

    def __init__(self, store: RemoteStore, name: str) -> None:
        self.name = name
        self._store = store
        self._content = bytearray()
        self._finished = False

    @property
    def position(self) -> int:
        return len(self._content)

    @property
    def is_removed(self) -> bool:
        return False

    def write(self, *chunks: BytesLike) -> int:
        assert not self._finished, "a finished object was written to"
        start = self.position
        self._content += b"".join(chunks)
        return start

    def sync(self) -> None:
        """The same bytes to the same name until the answer is definite, as storage/s3_client.py."""
        if self._finished:
            return
        store, content = self._store, bytes(self._content)
        for attempt in range(_ATTEMPTS):
            try:
                answer = store._put(self.name, content, store._process.date_us)
            except (BotoCoreError, ClientError):
                store._process.wait_us(100_000 << attempt)
                continue
            if answer == "refused":
                raise _wrong_date(self.name)
            if answer == "taken" and store.read(self.name) != content:
                raise AlreadyExistsError("FILE_EXISTS", f"{self.name}: exists", fix="Use another name")
            self._finished = True
            return
        raise _unavailable(self.name)

    def close(self) -> None:
        """Nothing is kept open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
