"""What a scrape looks at: read on the event loop at one moment, then told in a thread (collector.py).

Invariants: nothing in it changes any more, but for counters, which only grow, and mappings that others own,
    which are copied (in one step of the interpreter) before anybody loops over them. So a scrape of a large
    root does not hold up requests.
Whether the root is there is asked of the storage each time, with a limit: an unmounted or hanging root is
what a broker without disks of its own has in the place of an offline disk.
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
# How idle the event loop and the storage threads are, over the last minute, as Kafka reports it.
#
# Measured, not estimated: the processor time of the loop's thread, and the time that storage calls took.
# Invariants: at most WINDOW_SAMPLES samples are kept; a share is between 0 and 1.
# Not here: who takes the samples (http/endpoint.py, once a second).
# Concurrency: `sample` on the event loop's thread only, since it asks for the time of the calling thread.
# Sources: Kafka SocketServer (NetworkProcessorAvgIdlePercent), KafkaRequestHandlerPool.


WINDOW_SAMPLES = 60


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """Seconds since some beginning."""

    wall: float
    loop_busy: float
    storage_busy: float


class Utilization:
    """The last samples."""

    def __init__(self, storage_threads: Callable[[], int]) -> None:
        """`storage_threads`: how many there are now."""
        self._storage_threads = storage_threads
        self._samples: collections.deque[Sample] = collections.deque(maxlen=WINDOW_SAMPLES)

    def sample(self, storage_busy_ms: float) -> None:
        """Look at the clocks."""
        self.add(Sample(time.perf_counter(), time.thread_time(), storage_busy_ms / 1000))

    def add(self, sample: Sample) -> None:
        self._samples.append(sample)

    @property
    def loop_idle(self) -> float:
        """The share of time that the event loop's thread had nothing to do."""
        return self._idle(lambda sample: sample.loop_busy, 1)

    @property
    def storage_idle(self) -> float:
        """The share of the storage threads' time in which they waited for work."""
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
_GROUPS_AT_ONCE = 500


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of the broker that are looked at."""

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
    """A group, and what it has committed: still the coordinator's own mapping, to be copied before use."""

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
        """Can records be read and written here? What it leads stands and falls together: it shares a root."""
        return self.is_serving and self.root_visible


async def observe(parts: Parts, utilization: Utilization) -> Observation:
    """Look at everything; called on the event loop."""
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
    """Is the root there, and still the same one?"""
    try:
        return await asyncio.wait_for(asyncio.shield(parts.root.look_for_root()), ROOT_TIMEOUT_SECONDS)
    except (SparklogError, OSError, TimeoutError):
        return False


def why_not_in_charge(parts: Parts) -> str | None:
    """Why the broker must not answer for groups and partitions, if it must not."""
    membership = parts.membership
    if not membership.is_registered:
        return "the broker is fenced, or another process has its node id"
    if membership.left_ms <= 0:
        return "the root's commits cannot be followed"
    return None


async def _groups(parts: Parts) -> tuple[GroupView, ...]:
    """All groups; requests get their turn after every few hundred. Offsets are looked at later (copied)."""
    _, listed = parts.groups.list_groups()
    views = []
    for number, one in enumerate(listed):
        if number % _GROUPS_AT_ONCE == _GROUPS_AT_ONCE - 1:
            await asyncio.sleep(0)
        _, offsets = parts.groups.fetch(one.group_id)
        group = parts.groups.find(one.group_id)
        views.append(
            GroupView(
                name=one.group_id,
                state=str(one.state),
                members=0 if group is None else len(group.members),
                joining=0 if group is None else group.members.joining,
                offsets=offsets,
            )
        )
    return tuple(views)
