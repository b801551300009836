"""An object store in memory, at the other end of a network.

A request takes effect at the server at one moment between its sending and its answer, whether or not its
sender is still alive. Faults: requests and answers get lost; a put arrives twice, or long after its
sender gave up (as late as the store accepts its date, if it looks at dates); the store says that it is
busy; it fails for a minute. As storage/s3.py, requests that may be repeated are; a put is tried once.
Concurrency: processes of one world; each has its own RemoteStore over one Server.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

from sparklog.errors import AlreadyExistsError, NotFoundError, RetriableError, StorageError
from sparklog.metadata.paths import commit_of
from sparklog.storage import BytesLike, IndefinitePutError, StoredFile
from sparklog.storage.base import StoreTraits
from sparklog.storage.memory import MemoryReadFile
from tests.simulation.world import HOUR_US, MINUTE_US, START_MS, SimProcess, World

T = TypeVar("T")
PUT_LIFETIME_MS = 30 * 60_000
_ATTEMPTS = 8


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
        self.files: dict[str, SimObject] = {}
        self.fails_until_us = 0
        self.latency_us = world.dice.choice((200, 2_000, 30_000))
        self.fault_rate = world.dice.choice((0.0, 0.01, 0.05))
        self.requests = 0
        self.violations: list[str] = []
        self._commits: dict[str, bytes] = {}  # every commit there ever was

    def put(self, name: str, data: bytes, signed_us: int, *, conditional: bool) -> str:
        now = self.world.now_us
        if self.checks_dates and now - signed_us > PUT_LIFETIME_MS * 1000:
            return "refused"
        if conditional and name in self.files:
            return "taken"
        self.files[name] = SimObject(bytes(data), now)
        if commit_of(name) is not None and self._commits.setdefault(name, data) != data:
            self.violations.append(f"{name}: another commit took a number that had been used")
        return "done"


class RemoteStore:
    """See Store."""

    def __init__(self, server: Server, process: SimProcess, *, refresh_interval_ms: int) -> None:
        self.url = "sim:remote"
        self.traits = StoreTraits(
            is_remote=True, appends_after_sync=False, refresh_interval_ms=refresh_interval_ms
        )
        self._server = server
        self._world = server.world
        self._process = process

    # --- putting -------------------------------------------------------------------------------------

    def put_if_absent(self, name: str, data: bytes, *, guard: Callable[[], bool] | None = None) -> None:
        self._process.refuse_if_dead()
        signed_us = self._world.now_us
        # A process can be stopped between signing and asking, and between asking and sending.
        self._process.wait_us(0)
        if guard is not None and not guard():
            raise RetriableError("PUT_REFUSED", f"{name}: overtaken before it was sent", fix="Try again")
        self._process.wait_us(0)
        answer = self._put(name, data, signed_us)
        if answer == "done":
            return
        if answer == "taken":
            raise AlreadyExistsError("FILE_EXISTS", f"{name}: exists", fix="Use another name")
        if answer == "refused":
            raise StorageError("CLOCK_SKEWED", f"{name}: the request is too old", fix="Set the clock")
        raise IndefinitePutError("PUT_INDEFINITE", f"{name}: {answer}", fix="Repeat the same put")

    def _put(self, name: str, data: bytes, signed_us: int) -> str:
        """One attempt: done, taken, refused, or why that is not known."""
        world, dice, server = self._world, self._world.dice, self._server
        there, back = self._latency(), self._latency()
        rate = server.fault_rate
        server.requests += 1
        if world.now_us < server.fails_until_us or world.chance(rate, "busy"):
            self._process.wait_us(there + back)
            return "busy"
        if world.chance(rate, "request lost"):
            self._process.wait_us(self._patience())
            return "no answer"
        answers: list[str] = []

        def apply() -> None:
            answers.append(server.put(name, data, signed_us, conditional=True))

        if world.chance(rate, "late put"):
            world.at(dice.choice((20_000, 1_000_000, MINUTE_US, 20 * MINUTE_US, 2 * HOUR_US)), apply)
            self._process.wait_us(self._patience())
            return "no answer"
        world.at(there, apply)
        if world.chance(rate, "doubled put"):
            world.at(there + dice.choice((1_000, 1_000_000, 10 * MINUTE_US)), apply)
        if world.chance(rate, "answer lost"):
            self._process.wait_us(there + self._patience())
            return "no answer"
        self._process.wait_us(there)
        self._process.wait_us(back)
        return answers[0]

    def _patience(self) -> int:
        return self._world.dice.choice((5_000, 200_000, 5_000_000))

    def sync_name(self, name: str) -> None:
        """An object that is there is durable."""

    def append_file(self, name: str, *, mapped: bool = False) -> "RemoteAppendFile":
        self._process.refuse_if_dead()
        return RemoteAppendFile(self, name)

    def put_hint(self, name: str, data: BytesLike) -> None:
        copy, signed_us = bytes(data), self._world.now_us
        self._request(name, lambda: self._server.put(name, copy, signed_us, conditional=False))

    def abort_puts(self, name: str) -> None:
        """Nothing can."""

    def put_lifetime_ms(self) -> int | None:
        return PUT_LIFETIME_MS if self._server.checks_dates else None

    def storage_now_ms(self, here_ms: int) -> int:
        del here_ms
        return START_MS + self._world.now_us // 1000

    def take_turn(self, prefix: str) -> Callable[[], None]:
        return lambda: None

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
            self._server.requests += 1
            self._world.at(self._latency(), lambda name=name: look(name))  # type: ignore[misc]
        self._process.wait_us(2 * self._server.latency_us)
        return [found[name] for name in names]

    def exists(self, name: str) -> bool:
        return self._request(name, lambda: name in self._server.files)

    def list(
        self, prefix: str, *, recursive: bool = False, start_after: str | None = None
    ) -> list[StoredFile]:
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

    def delete(self, name: str) -> None:
        self._request(name, lambda: self._server.files.pop(name, None))

    def delete_directory(self, prefix: str) -> None:
        for stored in self.list(prefix, recursive=True):
            self.delete(stored.name)

    def open_read(self, name: str) -> MemoryReadFile:
        stored = self._request(name, lambda: self._server.files.get(name))
        if stored is None:
            raise NotFoundError("FILE_NOT_FOUND", f"{name}: not found", fix="Look again")
        return MemoryReadFile(name, stored.content)

    def sweep_temporary(self, *, older_than_ms: int) -> int:
        del older_than_ms
        return 0

    def _request(self, name: str, apply: Callable[[], T]) -> T:
        """One that may be repeated: by this client, until an answer comes, and by the network."""
        self._process.refuse_if_dead()
        world, server = self._world, self._server
        for attempt in range(_ATTEMPTS):
            server.requests += 1
            if world.now_us < server.fails_until_us or world.chance(server.fault_rate, "read failed"):
                self._process.wait_us(self._latency() + (100_000 << attempt))
                continue
            self._process.wait_us(self._latency())
            result = apply()
            self._process.wait_us(self._latency())
            return result
        raise StorageError("STORE_UNAVAILABLE", f"{name}: no answer", fix="Look after the store")

    def _latency(self) -> int:
        return self._world.dice.randrange(1, self._server.latency_us)


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

    def write(self, *chunks: BytesLike) -> int:
        assert not self._finished, "a finished object was written to"
        start = self.position
        self._content += b"".join(chunks)
        return start

    def sync(self) -> None:
        """The same bytes to the same name until the answer is definite, as storage/s3_files.py."""
        if self._finished:
            return
        store, content = self._store, bytes(self._content)
        for attempt in range(_ATTEMPTS):
            answer = store._put(self.name, content, store._world.now_us)
            if answer == "taken" and store.read(self.name) != content:
                raise AlreadyExistsError("FILE_EXISTS", f"{self.name}: exists", fix="Use another name")
            if answer in {"done", "taken"}:
                self._finished = True
                return
            store._process.wait_us(100_000 << attempt)
        raise StorageError("STORE_UNAVAILABLE", f"{self.name}: no answer", fix="Look after the store")

    def close(self) -> None:
        """Nothing is kept open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
