"""The observation of a scrape: made on the event loop at one moment, encoded in a thread (collector.py).

Invariants: an observation does not change, except counters, which only grow, and mappings of other owners,
    which are copied (in one step of the interpreter) before any loop over them. So a scrape of a large root
    does not block requests.
Each scrape checks the root's storage, with a time limit: an unmounted or hanging root corresponds to Kafka's
offline disk.
Not here: names and labels.
"""

import asyncio
import collections
import dataclasses
import time
from collections.abc import Callable, Mapping

from sparklog.clock import Clock
from sparklog.errors import SparklogError
from sparklog.format.consumer_offsets import OffsetValue
from sparklog.metadata import Image
from sparklog_server.cluster.leadership import Leadership
from sparklog_server.cluster.membership import Membership
from sparklog_server.groups.coordinator import GroupCoordinator
from sparklog_server.metrics.metrics import Gauge, Metrics
from sparklog_server.publish.publisher import Publisher
from sparklog_server.root.live_root import LiveRoot
from sparklog_server.runtime.lifecycle import BrokerState, Lifecycle

# --- utilization -------------------------------------------------------------------------------------
#
# The idle shares of the event loop and the storage threads, over the last minute, as in Kafka.
#
# Measured, not estimated: the CPU time of the loop's thread, and the time of storage calls.
# Invariants: at most WINDOW_SAMPLES samples are kept; a share is between 0 and 1.
# Not here: the timer of samples (http/endpoint.py, once a second).
# Concurrency: `sample` on the event loop's thread only, since it reads the time of the calling thread.
# Sources: Kafka SocketServer (NetworkProcessorAvgIdlePercent), KafkaRequestHandlerPool.


WINDOW_SAMPLES = 60


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """Seconds since an arbitrary origin."""

    wall: float
    loop_busy: float
    storage_busy: float


class Utilization:
    """The last samples."""

    def __init__(self, storage_threads: Callable[[], int]) -> None:
        """`storage_threads` returns their current number."""
        self._storage_threads = storage_threads
        self._samples: collections.deque[Sample] = collections.deque(maxlen=WINDOW_SAMPLES)

    def sample(self, storage_busy_ms: float) -> None:
        """Add a sample of the clocks."""
        self.add(Sample(time.perf_counter(), time.thread_time(), storage_busy_ms / 1000))

    def add(self, sample: Sample) -> None:
        self._samples.append(sample)

    @property
    def loop_idle(self) -> float:
        """The idle share of the event loop's thread."""
        return self._idle(lambda sample: sample.loop_busy, 1)

    @property
    def storage_idle(self) -> float:
        """The idle share of the storage threads."""
        return self._idle(lambda sample: sample.storage_busy, self._storage_threads())

    def _idle(self, busy: Callable[[Sample], float], threads: int) -> float:
        if len(self._samples) < 2:
            return 1.0
        first, last = self._samples[0], self._samples[-1]
        elapsed = (last.wall - first.wall) * threads
        if elapsed <= 0:
            return 1.0
        return min(max(1.0 - (busy(last) - busy(first)) / elapsed, 0.0), 1.0)


# --- observation -------------------------------------------------------------------------------------


ROOT_TIMEOUT_SECONDS = 2.0
_GROUPS_PER_TURN = 500


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The observed parts of the broker."""

    lifecycle: Lifecycle
    root: LiveRoot
    membership: Membership
    leadership: Leadership
    publisher: Publisher
    groups: GroupCoordinator
    clock: Clock
    metrics: Metrics


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """A group and its committed offsets: the coordinator's own mapping, to be copied before use."""

    name: str
    state: str
    members: int
    joining: int  # members that wait for a JoinGroup to be answered
    offsets: Mapping[tuple[str, int], OffsetValue]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The broker at one moment."""

    node_id: int
    state: str
    is_serving: bool  # accepts requests, and is registered
    is_registered: bool
    is_controller: bool
    root_visible: bool
    image: Image
    metrics: Metrics
    gauges: Mapping[Gauge, float]
    groups: tuple[GroupView, ...]
    loop_idle: float
    storage_idle: float
    now_ms: int

    @property
    def partitions_available(self) -> bool:
        """True if records can be read and written here; the same for all partitions, in one root."""
        return self.is_serving and self.root_visible


async def observe(parts: Parts, utilization: Utilization) -> Observation:
    """Make an observation; called on the event loop."""
    metrics = parts.metrics
    root_visible = await is_root_visible(parts)
    metrics.tick(parts.clock.monotonic_ms())
    utilization.sample(metrics.storage_busy_ms)
    registered = parts.membership.is_registered
    groups = await _groups(parts)
    state = parts.lifecycle.state
    leadership = parts.leadership
    return Observation(
        node_id=leadership.node_id,
        state=state.name,
        is_serving=state is BrokerState.RUNNING and registered,
        is_registered=registered,
        is_controller=registered and leadership.controller_id == leadership.node_id,
        root_visible=root_visible,
        image=parts.root.image,
        metrics=metrics,
        gauges={
            Gauge.PURGATORY_PRODUCE: parts.publisher.pending_submissions,
            Gauge.PURGATORY_REBALANCE: sum(group.joining for group in groups),
            **{gauge: float(read()) for gauge, read in metrics.gauges.items()},
        },
        groups=groups,
        loop_idle=utilization.loop_idle,
        storage_idle=utilization.storage_idle,
        now_ms=parts.clock.now_ms(),
    )


async def is_root_visible(parts: Parts) -> bool:
    """Return True if the root exists, and is still the same one."""
    try:
        return await asyncio.wait_for(asyncio.shield(parts.root.check_root()), ROOT_TIMEOUT_SECONDS)
    except (SparklogError, OSError, TimeoutError):
        return False


def reason_not_in_charge(parts: Parts) -> str | None:
    """Return the reason why the broker must not answer for groups and partitions; None: it may."""
    membership = parts.membership
    if not membership.is_registered:
        return "the broker is fenced, or another process has its node id"
    if membership.left_ms <= 0:
        return "the root's commits cannot be followed"
    return None


async def _groups(parts: Parts) -> tuple[GroupView, ...]:
    """Return all groups; yield to requests after every few hundred. Offsets are not copied yet."""
    _, listed = parts.groups.list_groups()
    views = []
    for number, listing in enumerate(listed):
        if number % _GROUPS_PER_TURN == _GROUPS_PER_TURN - 1:
            await asyncio.sleep(0)
        _, offsets = parts.groups.fetch(listing.group_id)
        group = parts.groups.find(listing.group_id)
        views.append(
            GroupView(
                name=listing.group_id,
                state=str(listing.state),
                members=parts.groups.member_count(listing.group_id),
                joining=0 if group is None else group.members.joining,
                offsets=offsets,
            )
        )
    return tuple(views)
