"""The root that is served, as of the newest commit that is known: the one place to ask what it is like.

Invariants: whoever listens is told every image that is shown here, in the order of commits, with the one that
    was shown before; a listener that fails harms no other.
Not here: when to look (cluster/following.py), publishing (publish/), who may answer (cluster/membership.py).
Concurrency: the event loop owns everything here; storage work runs in threads, through `run`, and what
    must not wait for consumers through `run_apart`. `image` may be
    asked in any thread, and is replaced at any time: take it once for one answer.
After a crash: start again; the log is whatever was committed.
Sources: Kafka MetadataCache, MetadataPublisher.
"""

import asyncio
import concurrent.futures
import contextlib
import functools
import logging
import time
from collections.abc import Callable, Collection, Mapping
from time import monotonic
from typing import Any, Final, TypeVar

from sparklog.client import SparkLog
from sparklog.clock import Clock
from sparklog.errors import SparklogError
from sparklog.log.config import RootConfig, TopicConfig
from sparklog.log.setting import declared_settings
from sparklog.metadata import NO_NODE, Image, MetadataLog, PartitionState, Topic
from sparklog.storage import Store
from sparklog_server.metrics import Metrics
from sparklog_server.settings.config import ServerConfig, config_in_force, topic_defaults_in_force
from sparklog_server.settings.updating import DYNAMIC

# --- attention ---------------------------------------------------------------------------------------
#
# On an object store each look at the metadata log is a request, and one after the other they are what an idle
# broker costs. So the log is followed as often as sparklog.metadata.poll.ms says while requests are worked
# on, waiting fetches among them, and for a moment after each; else seldom. A request that finds the log
# followed seldom waits for a look first: no answer rests on an older image than it would among others.
#
# Invariants: whoever has begun ends, once. Nobody waits for a look longer than LOOK_SECONDS: what may be
#     answered on an image that is older is for the role to say (cluster/membership.py).
# Not here: looking (cluster/following.py).
# Concurrency: event loop only.


LINGER_SECONDS: Final = 1.0
LOOK_SECONDS: Final = 1.0


class Attention:
    """Does anybody wait for news of the root?

    While nobody does, it need not be asked for them.
    """

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._wanting = 0
        self._last = -LINGER_SECONDS
        self._napping: asyncio.Future[None] | None = None  # until somebody wants news
        self._looked: asyncio.Future[None] | None = None

    @property
    def is_paid(self) -> bool:
        """Does anybody want news, or did a moment ago?"""
        return self._wanting > 0 or self._now() - self._last < LINGER_SECONDS

    @property
    def is_napping(self) -> bool:
        """Is nobody looking, and would whoever came now wait for a look? Not so yet when no attention is
        paid any more, but a look among others is under way: that may not find what has come since it began.
        """
        return self._napping is not None and not self._napping.done()

    async def begin(self) -> None:
        """Want news until `end`; the newest image is shown when this returns, as far as it can be had."""
        self._wanting += 1
        if self._napping is not None and not self._napping.done():
            self._napping.set_result(None)
        if self._looked is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await asyncio.shield(self._looked)

    def end(self) -> None:
        """After `begin`, also one that was cancelled."""
        self._wanting -= 1
        self._last = self._now()

    async def nap(self, seconds: float) -> None:
        """Until somebody wants news, or so long. Whoever comes waits for `has_looked`."""
        loop = asyncio.get_running_loop()
        self._napping = loop.create_future()
        self._looked = loop.create_future()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._napping

    def has_looked(self) -> None:
        """The log was looked at after the nap, or could not be."""
        looked, self._looked, self._napping = self._looked, None, None
        if looked is not None and not looked.done():
            looked.set_result(None)


# --- leftovers ---------------------------------------------------------------------------------------
#
# Looked for at most once a day, when other upkeep falls due: never while somebody waits for a publish, and by
# one thread alone. What is older than a day belongs to nobody who is still at work; a put that was suspended
# for so long fails, with an error that says so, and is tried again. An upload may belong to a task of days,
# and is left for a week.
# Not here: how they are told from what is in use (sparklog/storage/); roots without a broker, which
#     `sparklog root sweep` is for.
# Concurrency: the upkeep's thread (sparklog/metadata/upkeep.py).
# After a crash: what is left is found by the next sweep.


DAY_MS = 24 * 3_600_000


class Leftovers:
    """What killed writers left: temporary files, and parts of uploads that nobody will finish."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._due_ms = clock.monotonic_ms()

    def sweep_if_due(self) -> None:
        """Sweep, unless that was done within a day. What fails is tried again in a day."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._due_ms:
            return
        self._due_ms = now_ms + DAY_MS
        try:
            removed = self._store.sweep_temporary(older_than_ms=DAY_MS)
        except (SparklogError, OSError) as error:
            _log.warning("removing what unfinished writes left behind failed: %s", error)
            return
        if removed:
            _log.info("removed %d files that unfinished writes had left behind", removed)


# --- live root ---------------------------------------------------------------------------------------


_log = logging.getLogger("sparklog_server")
APART_THREADS = 4
T = TypeVar("T")
ImageCallback = Callable[[Image, Image], None]


class LiveRoot:
    """See the module's docstring."""

    def __init__(
        self,
        log: SparkLog,
        *,
        defaults: Mapping[str, str],
        metrics: Metrics,
        storage_threads: int,
        node_id: int = NO_NODE,
    ) -> None:
        """See the class.

        Args:
            defaults: what the broker was started with of settings that the root may say, too.
            node_id: which broker's own settings in the root count.
        """
        self.log = log
        self._defaults = defaults
        self._node_id = node_id
        self._metrics = metrics
        self._have_threads(storage_threads)
        self._apart = concurrent.futures.ThreadPoolExecutor(APART_THREADS, "storage-apart")
        self._presence: asyncio.Task[bool] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._next_look: asyncio.Task[None] | None = None  # begins when that has ended
        self._follower = concurrent.futures.ThreadPoolExecutor(1, "follower")
        self._image_callbacks: list[ImageCallback] = []
        self._told: set[str] = set()
        self._shown = log.image
        log.metadata.add_upkeep(Leftovers(log.store, log.clock).sweep_if_due)

    @property
    def cluster_id(self) -> str:
        """The root's identity."""
        return self.log.cluster_id

    @property
    def store(self) -> Store:
        """Where the root lies."""
        return self.log.store

    @property
    def metadata(self) -> MetadataLog:
        """Its metadata log."""
        return self.log.metadata

    @property
    def image(self) -> Image:
        """Topics and extents, as of the newest commit that is known."""
        return self.log.image

    def root_config(self, image: Image | None = None) -> RootConfig:
        """The root's settings in force: its own, else the broker's. For who does what they say.

        Raises:
            InvalidRequestError: one of them cannot be: a newer sparklog's, or written by hand.
        """
        configs = (self.image if image is None else image).configs
        return RootConfig.parse({**self._defaults, **configs})

    def root_config_of(self, keys: Collection[str], image: Image) -> RootConfig:
        """These of the root's settings, for what must go on whatever is stored: of what cannot be, the
        broker's own counts, and it is told of once; the others have their defaults.
        """
        values = {key: self._defaults[key] for key in keys if key in self._defaults}
        for key in keys:
            text = image.configs.get(key)
            if text is None:
                continue
            try:
                declared_settings(RootConfig)[key][1].parse(text)
                values[key] = text
            except SparklogError as error:
                if str(error) not in self._told:
                    _log.warning("a setting of the root is passed over: %s", error)
                self._told.add(str(error))
        return RootConfig.parse(values)

    def topic_config(self, topic: Topic, image: Image | None = None) -> TopicConfig:
        """A topic's settings in force: its own, else what the root has for this broker, else what it has for
        all, else what the broker was started with.
        """
        configs = (self.image if image is None else image).configs
        own = topic_defaults_in_force(configs, self._node_id)
        return TopicConfig.parse(topic.configs, {**self._defaults, **configs, **own})

    # --- work in storage threads --------------------------------------------------------------------

    @property
    def storage_threads(self) -> int:
        """How many there are at most."""
        return self._thread_count

    def resize(self, storage_threads: int) -> None:
        """Have so many from now on. What was asked of the others they still do, and end."""
        if storage_threads == self._thread_count:
            return
        before = self._threads
        self._have_threads(storage_threads)
        before.shutdown(wait=False)

    def _have_threads(self, count: int) -> None:
        self._thread_count = count
        self._threads = concurrent.futures.ThreadPoolExecutor(count, "storage")
        self._at_length = asyncio.Semaphore(max(1, count // 2))

    async def run(self, function: Callable[..., T], /, *args: Any) -> T:
        """Run blocking work in a storage thread."""
        queued = time.perf_counter()

        def work() -> T:
            began = time.perf_counter()
            try:
                return function(*args)
            finally:
                ended = time.perf_counter()
                self._metrics.storage_call((ended - began) * 1000, (began - queued) * 1000)

        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def run_at_length(self, function: Callable[..., T], /, *args: Any) -> T:
        """Run a part of what a request may ask very much of: at most half of the threads do such work, in
        the order in which it was asked for, and the others are there for everything else.
        """
        async with self._at_length:
            return await self.run(function, *args)

    async def run_apart(self, function: Callable[..., T], /, *args: Any) -> T:
        """Run blocking work that waits for no consumer, whatever the storage threads are busy with."""
        return await asyncio.get_running_loop().run_in_executor(
            self._apart, functools.partial(function, *args)
        )

    def look_for_root(self) -> "asyncio.Future[bool]":
        """Is the root there, and still the same one? Whoever asks while a look hangs shares it; shield it
        from a time-out. It waits for no consumer: slow reads do not make a root unavailable.
        """
        if self._presence is None or self._presence.done():
            self._presence = asyncio.ensure_future(self.run_apart(self.log.is_same_root))
            self._presence.add_done_callback(lambda done: done.cancelled() or done.exception())
        return self._presence

    def begin_refresh(self) -> "asyncio.Future[Image]":
        """Look for commits of others, in a thread that does nothing else: an image that is too old takes the
        broker's role away. Not counted as work, and nobody is told yet (`show`).
        """
        return asyncio.get_running_loop().run_in_executor(self._follower, self.log.refresh)

    def newest(self, topic_id: str, partition: int) -> PartitionState:
        """A partition as of the newest commit, looked for now: for who misses a file. A storage thread.

        Raises:
            UnknownTopicError: it was deleted.
        """
        return self.log.refresh(force=True).partition_of(topic_id, partition)

    # --- news ---------------------------------------------------------------------------------------

    async def look(self, *, force: bool = False) -> SparklogError | OSError | None:
        """Look for commits of others now, for somebody who may know of one; what went wrong, if it did.

        Args:
            force: also where the store is set to be asked every so often only: the answer depends on it.
        """
        try:
            await self.run(functools.partial(self.log.refresh, force=force))
        except (SparklogError, OSError) as error:
            _log.info("looking for commits failed: %s", error)
            return error
        self.show()
        return None

    async def look_in_order(self, *, seconds: float) -> None:
        """Return when a look has ended that began after this call, or after `seconds`.

        Calls return in their order, and share looks. Whether the look succeeded is not reported.
        """
        if self._next_look is None:
            self._next_look = asyncio.ensure_future(self._look_after(self._looking))
            self._next_look.add_done_callback(lambda done: done.cancelled() or done.exception())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.shield(self._next_look)

    async def _look_after(self, before: "asyncio.Task[None] | None") -> None:
        if before is not None:
            await asyncio.wait({before})
        self._looking, self._next_look = self._next_look, None
        try:
            await self.run_apart(functools.partial(self.log.refresh, force=True))
        except (SparklogError, OSError) as error:
            _log.info("looking for commits failed: %s", error)
        self.show()

    def on_image(self, callback: ImageCallback) -> None:
        """Have `callback(old, new)` called on the loop after the image advanced, after those before it."""
        self._image_callbacks.append(callback)

    def show(self) -> None:
        """Tell about the newest image, if it is news. Called on the loop, after a publish or refresh."""
        old, new = self._shown, self.log.image
        if new is old:
            return
        self._shown = new
        for callback in self._image_callbacks:
            try:
                callback(old, new)
            except Exception:  # noqa: BLE001 - the other callbacks must still hear of it
                _log.exception("a callback for commit %d failed", new.commit)

    # --- end ----------------------------------------------------------------------------------------

    async def finish_upkeep(self) -> None:
        """Wait for a snapshot that is being written, once nothing is published any more."""
        await asyncio.to_thread(self.metadata.finish_upkeep)

    def close(self) -> None:
        """End the storage threads, without waiting for what hangs in the storage."""
        for threads in (self._threads, self._apart, self._follower):
            threads.shutdown(wait=False, cancel_futures=True)


# --- settings in force -------------------------------------------------------------------------------
#
# Invariants: `current` is as the newest image that was shown says; who listens is told when it changes, and
#     asks `current` for what was so before. What cannot be is told of once, and passed over.
# Not here: which settings can change (settings/updating.py), changing them (admin/).
# Concurrency: changes on the event loop; `current` may be asked in any thread.
# After a crash: the root has them; a broker that starts reads them before it makes its parts.
# Sources: Kafka DynamicBrokerConfig, DynamicConfigPublisher.


class SettingsInForce:
    """What the root says of this broker's settings, taken up while it runs."""

    def __init__(self, started_with: ServerConfig, root: LiveRoot) -> None:
        self._started_with = started_with
        self._callbacks: list[Callable[[ServerConfig], None]] = []
        self._told: set[str] = set()
        self.current = self._of(root.image)
        root.on_image(self._look)

    def on_change(self, callback: Callable[[ServerConfig], None]) -> None:
        """Have `callback(settings)` called on the loop with settings that are others than before."""
        self._callbacks.append(callback)

    def _look(self, old: Image, new: Image) -> None:
        if new.configs == old.configs:
            return
        before, self.current = self.current, self._of(new)
        changed = [name for name in sorted(DYNAMIC) if before.text_of(name) != self.current.text_of(name)]
        if not changed:
            return
        _log.info("settings: %s", ", ".join(f"{name}={self.current.text_of(name)}" for name in changed))
        for callback in self._callbacks:
            callback(self.current)

    def _of(self, image: Image) -> ServerConfig:
        config, problems = config_in_force(
            self._started_with, image.configs, self._started_with.broker.node_id
        )
        told = {str(problem) for problem in problems.values()}
        for problem in sorted(told - self._told):
            _log.warning("a setting that the root has for brokers is passed over: %s", problem)
        self._told = told
        return config
