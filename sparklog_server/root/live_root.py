"""The served root, as of the newest known commit: its image, its settings in force, its storage threads.

Invariants: listeners get every image that `show` installs, in the order of commits, with the previous one; a
    failing listener does not affect the others.
Not here: when to refresh (cluster/following.py), publishing (publish/), the broker's role
    (cluster/membership.py).
Concurrency: the event loop owns everything here; storage work runs in threads, through `run`; work that must
    not wait behind reads of consumers, through `run_apart`. `image` may be read in any thread, and is
    replaced at any time: read it once per answer.
After a crash: start again; the log is as committed.
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
# On an object store each refresh of the metadata log is a request; these requests are the cost of an idle
# broker. So the log is refreshed every sparklog.metadata.poll.ms while requests are in progress, waiting
# fetches included, and for a moment after each; else rarely. A request that ends an idle period waits for a
# refresh first: so its image is as new as in a busy broker.
#
# Invariants: each `begin` is followed by one `end`. The wait for a refresh takes at most REFRESH_SECONDS;
#     membership decides whether an older image may be used (cluster/membership.py).
# Not here: refreshing (cluster/following.py).
# Concurrency: event loop only.


LINGER_SECONDS: Final = 1.0
REFRESH_SECONDS: Final = 1.0


class Attention:
    """Counts the requests that need a fresh image; while there are none, refreshes are rare."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._wanting = 0
        self._last = -LINGER_SECONDS
        self._demand: asyncio.Future[None] | None = None  # while idle: done with the next `begin`
        self._refresh: asyncio.Future[None] | None = None  # done with the refresh after an idle period

    @property
    def is_active(self) -> bool:
        """True if a request needs a fresh image, or did a moment ago."""
        return self._wanting > 0 or self._now() - self._last < LINGER_SECONDS

    @property
    def is_idle(self) -> bool:
        """True if no refresh is running, and the next `begin` will wait for one.

        False while the last refresh of a busy period is running: it may miss commits since its start.
        """
        return self._demand is not None and not self._demand.done()

    async def begin(self) -> None:
        """Need a fresh image until `end`; after an idle period, wait for a refresh, within its time limit."""
        self._wanting += 1
        if self._demand is not None and not self._demand.done():
            self._demand.set_result(None)
        if self._refresh is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_SECONDS):
                    await asyncio.shield(self._refresh)

    def end(self) -> None:
        """End a `begin`, even one that was cancelled."""
        self._wanting -= 1
        self._last = self._now()

    async def idle(self, seconds: float) -> None:
        """Wait for the next `begin`, or so long. A `begin` from now on waits for `refreshed`."""
        loop = asyncio.get_running_loop()
        self._demand = loop.create_future()
        self._refresh = loop.create_future()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._demand

    def refreshed(self) -> None:
        """Release the waiting `begin` calls after the refresh that follows `idle`, even one that failed."""
        refresh, self._refresh, self._demand = self._refresh, None, None
        if refresh is not None and not refresh.done():
            refresh.set_result(None)


# --- leftovers ---------------------------------------------------------------------------------------
#
# Swept at most once a day, with other upkeep: by a single thread, and never while a publish is waiting. Files
# older than a day are abandoned; a put that was suspended for that long fails and is retried. An upload may
# belong to a task of days, and is kept for a week.
# Not here: recognising abandoned files (sparklog/storage/); roots without a broker (`sparklog root sweep`).
# Concurrency: the upkeep's thread (sparklog/metadata/upkeep.py).
# After a crash: the next sweep finds the rest.


DAY_MS = 24 * 3_600_000


class Leftovers:
    """Removes the files of killed writers: temporary files, and parts of abandoned uploads."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._due_ms = clock.monotonic_ms()

    def sweep_if_due(self) -> None:
        """Sweep, at most once a day, even after a failure."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._due_ms:
            return
        self._due_ms = now_ms + DAY_MS
        try:
            removed = self._store.sweep_temporary(older_than_ms=DAY_MS)
        except (SparklogError, OSError) as error:
            _log.warning("removing files of unfinished writes failed: %s", error)
            return
        if removed:
            _log.info("removed %d files of unfinished writes", removed)


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
        """Serve this log.

        Args:
            defaults: the broker's own values of settings that the root may have, too.
            node_id: the broker whose settings in the root apply.
        """
        self.log = log
        self._defaults = defaults
        self._node_id = node_id
        self._metrics = metrics
        self._create_threads(storage_threads)
        self._apart = concurrent.futures.ThreadPoolExecutor(APART_THREADS, "storage-apart")
        self._presence: asyncio.Task[bool] | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self._next_refresh: asyncio.Task[None] | None = None  # begins when that has ended
        self._follower = concurrent.futures.ThreadPoolExecutor(1, "follower")
        self._image_callbacks: list[ImageCallback] = []
        self._logged: set[str] = set()
        self._shown = log.image
        log.metadata.add_upkeep(Leftovers(log.store, log.clock).sweep_if_due)

    @property
    def cluster_id(self) -> str:
        """The root's identity."""
        return self.log.cluster_id

    @property
    def store(self) -> Store:
        """The root's store."""
        return self.log.store

    @property
    def metadata(self) -> MetadataLog:
        """The root's metadata log."""
        return self.log.metadata

    @property
    def image(self) -> Image:
        """Topics and extents, as of the newest known commit."""
        return self.log.metadata.image  # as log.image: each request asks several times

    def root_config(self, image: Image | None = None) -> RootConfig:
        """Return the root's settings in force: its own, else the broker's.

        Raises:
            InvalidRequestError: an invalid setting: of a newer sparklog, or written by hand.
        """
        configs = (self.image if image is None else image).configs
        return RootConfig.parse({**self._defaults, **configs})

    def root_config_of(self, keys: Collection[str], image: Image) -> RootConfig:
        """Return these of the root's settings, without ever raising; other settings have their defaults.

        The broker's own value replaces an invalid one, which is logged once.
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
                if str(error) not in self._logged:
                    _log.warning("ignoring a setting of the root: %s", error)
                self._logged.add(str(error))
        return RootConfig.parse(values)

    def topic_config(self, topic: Topic, image: Image | None = None) -> TopicConfig:
        """Return a topic's settings in force: its own, else the root's for this broker, else the root's for
        all brokers, else the broker's own.
        """
        configs = (self.image if image is None else image).configs
        own = topic_defaults_in_force(configs, self._node_id)
        return TopicConfig.parse(topic.configs, {**self._defaults, **configs, **own})

    # --- work in storage threads --------------------------------------------------------------------

    @property
    def storage_threads(self) -> int:
        """The maximum number of storage threads."""
        return self._thread_count

    def resize(self, storage_threads: int) -> None:
        """Change the number of storage threads. The old threads finish their queue, and end."""
        if storage_threads == self._thread_count:
            return
        before = self._threads
        self._create_threads(storage_threads)
        before.shutdown(wait=False)

    def _create_threads(self, count: int) -> None:
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
        """Run a part of a potentially long request, in the order of calls, in at most half of the threads."""
        async with self._at_length:
            return await self.run(function, *args)

    async def run_apart(self, function: Callable[..., T], /, *args: Any) -> T:
        """Run blocking work in separate threads, which never wait behind reads of consumers."""
        return await asyncio.get_running_loop().run_in_executor(
            self._apart, functools.partial(function, *args)
        )

    def check_root(self) -> "asyncio.Future[bool]":
        """Check that the root exists, and is still the same one.

        Concurrent calls share a check, so shield it from a time-out. It uses `run_apart`: slow reads do not
        make a root unavailable.
        """
        if self._presence is None or self._presence.done():
            self._presence = asyncio.ensure_future(self.run_apart(self.log.is_same_root))
            self._presence.add_done_callback(lambda done: done.cancelled() or done.exception())
        return self._presence

    def begin_refresh(self) -> "asyncio.Future[Image]":
        """Refresh in a dedicated thread: with a stale image the broker would lose its role.

        Not counted in metrics; the caller installs the image with `show`.
        """
        return asyncio.get_running_loop().run_in_executor(self._follower, self.log.refresh)

    def newest(self, topic_id: str, partition: int) -> PartitionState:
        """Refresh and return a partition, for readers that miss a file. Runs in a storage thread.

        Raises:
            UnknownTopicError: the topic was deleted.
        """
        return self.log.refresh(force=True).partition_of(topic_id, partition)

    # --- refreshing ---------------------------------------------------------------------------------

    async def look(self, *, force: bool = False) -> SparklogError | OSError | None:
        """Refresh now; return the error, if it failed.

        Args:
            force: refresh even if the store's refresh interval is not over.
        """
        try:
            await self.run(functools.partial(self.log.refresh, force=force))
        except (SparklogError, OSError) as error:
            _log.info("following commits failed: %s", error)
            return error
        self.show()
        return None

    async def refresh_in_order(self, *, seconds: float) -> None:
        """Wait for a refresh that begins after this call, at most `seconds`.

        Calls return in their order, and share refreshes. A failure is not reported.
        """
        if self._next_refresh is None:
            self._next_refresh = asyncio.ensure_future(self._refresh_after(self._refreshing))
            self._next_refresh.add_done_callback(lambda done: done.cancelled() or done.exception())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.shield(self._next_refresh)

    async def _refresh_after(self, before: "asyncio.Task[None] | None") -> None:
        if before is not None:
            await asyncio.wait({before})
        self._refreshing, self._next_refresh = self._next_refresh, None
        try:
            await self.run_apart(functools.partial(self.log.refresh, force=True))
        except (SparklogError, OSError) as error:
            _log.info("following commits failed: %s", error)
        self.show()

    def on_image(self, callback: ImageCallback) -> None:
        """Register `callback(old, new)`, called on the loop for each new image, in this order."""
        self._image_callbacks.append(callback)

    def show(self) -> None:
        """Install the newest image, and call the callbacks. Runs on the loop, after a publish or refresh."""
        old, new = self._shown, self.log.image
        if new is old:
            return
        self._shown = new
        for callback in self._image_callbacks:
            try:
                callback(old, new)
            except Exception:  # noqa: BLE001 - the other callbacks must still run
                _log.exception("a callback for commit %d failed", new.commit)

    # --- end ----------------------------------------------------------------------------------------

    async def finish_upkeep(self) -> None:
        """Wait for a snapshot that is being written; called after the last publish."""
        await asyncio.to_thread(self.metadata.finish_upkeep)

    def close(self) -> None:
        """End the storage threads, without waiting for hanging calls."""
        for threads in (self._threads, self._apart, self._follower):
            threads.shutdown(wait=False, cancel_futures=True)


# --- settings in force -------------------------------------------------------------------------------
#
# Invariants: `current` is that of the newest installed image; listeners are called when it changes. Invalid
#     settings are ignored, and logged once.
# Not here: which settings can change (settings/updating.py), changing them (admin/).
# Concurrency: changes on the event loop; `current` may be read in any thread.
# After a crash: the root has the settings; a starting broker reads them before it creates its components.
# Sources: Kafka DynamicBrokerConfig, DynamicConfigPublisher.


class SettingsInForce:
    """The broker's settings, updated from the root while it runs."""

    def __init__(self, started_with: ServerConfig, root: LiveRoot) -> None:
        self._started_with = started_with
        self._callbacks: list[Callable[[ServerConfig], None]] = []
        self._logged: set[str] = set()
        self.current = self._of(root.image)
        root.on_image(self._update)

    def on_change(self, callback: Callable[[ServerConfig], None]) -> None:
        """Register `callback(settings)`, called on the loop when settings have changed."""
        self._callbacks.append(callback)

    def _update(self, old: Image, new: Image) -> None:
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
        texts = {str(problem) for problem in problems.values()}
        for text in sorted(texts - self._logged):
            _log.warning("ignoring a setting that the root has for brokers: %s", text)
        self._logged = texts
        return config
