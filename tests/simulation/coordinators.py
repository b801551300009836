"""The coordinators of a simulated broker: of groups, and of transactions, as they are in a real one.

What they stand on is simulated: an event loop (event_loop.py), and the broker's publisher, whose work is done
by the broker's process (serving.py). So is the role: a broker is in charge while its registration stands, by
an image that is not too old (cluster/membership.py).

Invariants: turns of the loop are taken between what the process does, and while it waits for its store, as
    the threads of a broker and its loop take turns.
Not here: Kafka's entities (api/), connections.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sparklog.client import SparkLog
from sparklog.errors import FencedError
from sparklog.metadata import Plan, PublishResult
from sparklog_server.cluster.leadership import Leadership
from sparklog_server.cluster.membership import Registration
from sparklog_server.coordination.internal_topic import Host
from sparklog_server.groups.coordinator import GroupCoordinator
from sparklog_server.metrics import Metrics
from sparklog_server.publish.parts import AppendPart, PartOutcome
from sparklog_server.root.live_root import LiveRoot
from sparklog_server.runtime.timing import Timer
from sparklog_server.settings.groups import GroupSettings, TransactionSettings
from sparklog_server.transactions.coordinator import TransactionCoordinator
from tests.simulation.event_loop import EventLoop
from tests.simulation.world import SimProcess

OFFSETS_PARTITIONS = 2
_GROUPS = GroupSettings(group_initial_rebalance_delay_ms=0, group_min_session_timeout_ms=1)
_TRANSACTIONS = TransactionSettings()


@dataclass(eq=False)
class Asked:
    """A request to a coordinator, on a connection of its own.

    Fields:
        call: what is asked, of the coordinators of whoever reads it.
        told: hears the answer, or the error, if they come.
    """

    call: "Callable[[Coordinators], Awaitable[Any]]"
    told: Callable[[Any, Exception | None], None]


class Role:
    """Is the broker in charge, as far as it knows?"""

    def __init__(self, log: SparkLog, max_age_ms: int) -> None:
        self.registration: Registration | None = None
        self._log = log
        self._max_age_ms = max_age_ms

    @property
    def is_in_charge(self) -> bool:
        """By the newest image, shown or not."""
        if self.registration is None or self._log.metadata.image_age_ms >= self._max_age_ms:
            return False
        try:
            self.registration.validate(self._log.image)
        except FencedError:
            return False
        return True


class Publishing:
    """What is handed in, for the broker's process to publish."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self.parts: list[tuple[AppendPart, Callable[[PartOutcome], None]]] = []
        self.plans: list[tuple[Plan, Callable[[Any, Exception | None], None]]] = []

    def submit(self, parts: Sequence[AppendPart]) -> Awaitable[Sequence[PartOutcome]]:
        """See Appender."""
        future = self._loop.create_future()
        outcomes: dict[int, PartOutcome] = {}

        def told(number: int, outcome: PartOutcome) -> None:
            outcomes[number] = outcome
            if len(outcomes) == len(parts) and not future.done():
                future.set_result([outcomes[one] for one in range(len(parts))])

        for number, part in enumerate(parts):
            self.parts.append((part, partial(told, number)))
        return future

    def submit_plan(self, plan: Plan) -> Any:
        """See Appender."""
        future = self._loop.create_future()

        def told(result: PublishResult | None, error: Exception | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
                future.exception()  # whoever waited may be gone

        self.plans.append((plan, told))
        return future


class Coordinators:
    """Those of one process of a broker."""

    def __init__(
        self,
        log: SparkLog,
        process: SimProcess,
        node: int,
        *,
        max_age_ms: int,
        on_failure: Callable[[str], None],
    ) -> None:
        self.process = process
        self.loop = EventLoop(process, on_failure)
        self.role = Role(log, max_age_ms)
        self.publishing = Publishing(self.loop)
        metrics = Metrics()
        self.root = LiveRoot(log, defaults={}, metrics=metrics, storage_threads=1)
        host = Host(
            root=self.root,
            role=self.role,
            leadership=Leadership(node, self.root),
            publisher=self.publishing,
            timer=Timer(process, self.loop.as_asyncio),
            clock=process,
            metrics=metrics,
        )
        self.groups = GroupCoordinator(host, _GROUPS)
        self.transactions = TransactionCoordinator(
            self.root, self.publishing, _TRANSACTIONS, clock=process, metrics=metrics
        )
        self._has_begun = False
        self._has_resigned = False

    def read(self, asked: Asked) -> None:
        """Begin with what somebody asks; he is told when it is done."""

        async def answer() -> None:
            try:
                result = await asked.call(self)
            except Exception as error:
                asked.told(None, error)
            else:
                asked.told(result, None)

        self.loop.call_soon(lambda: self.loop.create_task(answer()))

    def look(self, registration: Registration | None) -> None:
        """Tell of the newest image, and resign or take up what is coordinated here."""
        self.role.registration = registration
        self.loop.call_soon(self._look)
        self.loop.turn()

    def _look(self) -> None:
        if not self._has_begun:
            if self.role.registration is None:
                return
            self._has_begun = True
            self.loop.create_task(self.groups.start())
            return
        is_in_charge = self.role.is_in_charge
        if not is_in_charge and not self._has_resigned:
            self._has_resigned = True
            self.groups.release()  # before anybody acts on the image that takes the role away
        self.root.show()
        if is_in_charge and self._has_resigned:
            self._has_resigned = False
            self.groups.resume()

    def root_has_news(self) -> None:
        """Tell the loop of a publish before whoever waits for it, as a publisher does."""
        self.loop.call_soon(self._look)
        self.loop.turn()

    def end(self) -> None:
        """The process is at its end."""
        self.loop.end()
        self.root.close()
