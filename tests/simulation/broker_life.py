"""One process of a simulated broker's node, from its start to its end: what it does, step by step.

It joins, moves its heartbeat, watches the others', and takes what clients send it if it leads the partition
*by the image that it has*, which may be old: it publishes that later, with the code of the broker's
publisher. Who is controller fails dead brokers over, finds leaders for what has none, and moves leaderships
about; who takes itself for it, and is not, tries the same. If there are groups, it has their coordinators.

Invariants: none here: those are the commits' (audit.py looks at every one), and the clients'.
Not here: the node over its lives (serving.py), coordinators (coordinators.py).
Sources: docs/adr/0026.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sparklog.client import SparkLog
from sparklog.client.topic_plan import OFFSETS_TOPIC
from sparklog.errors import FatalStorageError, FencedError, RetriableError, SparklogError, StorageError
from sparklog.log.config import RootConfig, TopicConfig
from sparklog.metadata import (
    NEVER_OPENS,
    NO_NODE,
    Action,
    Image,
    RegisteredBroker,
    plan_begin_controlled_shutdown,
    plan_elect_controller,
    plan_elect_leaders,
    plan_fence_broker,
)
from sparklog_server.cluster import elections
from sparklog_server.cluster import elections as selectors
from sparklog_server.cluster.elections import Assigning, Duties
from sparklog_server.cluster.liveness import Heartbeat, Observer, looks_until_dead, read_heartbeats
from sparklog_server.cluster.membership import Registration
from sparklog_server.publish.group_commit import GroupCommitter
from sparklog_server.publish.parts import AppendPart, PartOutcome
from tests.simulation.coordinators import Asked, Coordinators
from tests.simulation.processes import Role
from tests.simulation.setting import TOPICS
from tests.simulation.world import SimProcess

HEARTBEAT_MS, SESSION_MS = 500, 2_000
_CONFIG, _ROOT_CONFIG = TopicConfig.parse({}), RootConfig.parse({})
_NOT_LED = FencedError("NOT_LEADER", "the broker does not lead the partition", fix="ask the leader")
Told = Callable[[PartOutcome], None]


@dataclass(frozen=True, slots=True)
class Sent:
    """A batch that a client has sent: but for what the broker's image says when it is read."""

    part: Callable[[Image, str, int], AppendPart]  # of that, topic id, and leader epoch
    partition: int
    told: Told
    topic: str = TOPICS[0]


@dataclass
class Node(Role):
    """What others see of a broker, over all its lives."""

    node: int = 0
    inbox: list[Sent | Asked] = field(default_factory=list)
    is_up: bool = False
    process: SimProcess | None = None

    def ask(self, asked: Sent | Asked) -> None:
        """Something comes in, and is read soon."""
        self.inbox.append(asked)
        if self.process is not None:
            self.process.call()

    def believed_leader(self, partition: int, of: str = TOPICS[0]) -> int:
        """By what it has seen, however long ago: what Metadata would say."""
        topic = None if self.log is None else self.log.image.topics.get(of)
        if topic is None or partition >= len(topic.partitions):
            return NO_NODE
        return topic.partitions[partition].leadership.leader


class Life:
    """One process of a node, from its start to its end."""

    def __init__(self, role: Node, log: SparkLog, process: SimProcess) -> None:
        self._role, self._log, self._process = role, log, process
        self._setting, self._dice = role.setting, role.setting.dice
        self._registration: Registration | None = None
        self._heartbeat: Heartbeat | None = None
        self._beaten_ms = 0
        self._beats_beside = False
        self._observer = Observer(interval_ms=HEARTBEAT_MS, looks=looks_until_dead(SESSION_MS, HEARTBEAT_MS))
        self._looked_ms = -HEARTBEAT_MS
        self._planned: Image | None = None  # for which nothing was due
        self._control = 0  # the controller epoch in which it was elected; 0: it was not
        self._accepted: list[tuple[AppendPart, Told]] = []
        self._writer = GroupCommitter(log, self._current, lambda _: _CONFIG)
        self._hangs_until_ms = 0  # the publisher, in the storage
        self._stops_in = -1  # steps; -1: it does not
        self._coordinators: Coordinators | None = None
        if role.setting.members:
            self._coordinators = Coordinators(
                log, process, role.node, max_age_ms=SESSION_MS, on_failure=role.setting.problems.append
            )
            process.between = self._meanwhile

    def end(self) -> None:
        """The process is at its end."""
        self._process.between = None
        if self._coordinators is not None:
            self._coordinators.end()

    def _meanwhile(self) -> None:
        """While it waits for its store: its heart beats, the loop goes on, and may read what has come."""
        if not self._beats_beside:
            self._beats_beside = True
            try:
                self._beat()
            except (RetriableError, StorageError):
                pass  # the next one may arrive
            finally:
                self._beats_beside = False
        if self._coordinators is not None and self._dice.random() < 0.3:
            if self._registration is not None:
                self._accept()
            self._coordinators.loop.turn()

    def _current(self) -> Registration:
        assert self._registration is not None
        return self._registration

    def go_on(self) -> bool:
        """One step; true when the process is at its end."""
        if self._dice.random() < 0.7:
            self._log.refresh()
        registration = self._registration
        if self._coordinators is not None:
            self._coordinators.look(registration)
        if registration is None:
            self._join()
            return False
        registration.validate(self._log.image)
        self._beat()
        self._observe(registration)
        # Where there are groups a session ends now and then: it begins anew with each coordinator.
        moves = 0.01 if self._setting.members else 0.1
        if self._control and not self._setting.world.calm and self._dice.random() < moves:
            self._move_leaderships()
        self._accept()
        hangs = self._process.monotonic_ms() < self._hangs_until_ms
        if self._coordinators is not None:
            self._coordinate(self._coordinators, registration, hangs=hangs)
        if self._accepted and not hangs and self._dice.random() < (0.6 if self._setting.members else 0.2):
            self._publish()
        self._role.done += 1
        return self._stop(registration)

    def lose_what_is_over(self) -> None:
        """Another one is controller, or it was fenced: then nothing that was accepted is published."""
        image, registration = self._log.image, self._registration
        if image.controller.controller_epoch != self._control:
            self._control = 0
        if registration is None:
            return
        try:
            registration.validate(image)
        except FencedError:
            self._registration, self._control, self._stops_in = None, 0, -1
            self._answer_all(PartOutcome(error=_NOT_LED))

    # --- registration ------------------------------------------------------------------------------------

    def _join(self) -> None:
        image, node = self._log.image, self._role.node
        known = image.brokers.get(node)
        if known is not None and not known.is_fenced and not self._is_dead(known):
            return
        if known is not None and not known.is_fenced:
            epoch = known.broker_epoch
            self._log.metadata.publish(lambda now: _some(plan_fence_broker(now, node, epoch)))
        self._registration = Registration.join(self._log.metadata, node)
        self._heartbeat = Heartbeat(self._log.store, node, self._registration.broker_epoch)
        self._setting.world.met["joined"] += 1

    def _is_dead(self, known: RegisteredBroker) -> bool:
        """The process before this one of the node: the lock of a directory says so, else looks do."""
        if self._setting.is_directory:
            return True
        node = self._role.node
        found = read_heartbeats(self._log.store, [node])
        return node in self._observer.look({node: known}, found, now_ms=self._process.monotonic_ms())

    def _beat(self) -> None:
        now_ms = self._process.monotonic_ms()
        if self._heartbeat is not None and now_ms - self._beaten_ms >= HEARTBEAT_MS:
            self._beaten_ms = now_ms
            self._heartbeat.beat()

    def _stop(self, registration: Registration) -> bool:
        """As by SIGTERM: others take over first, if there are any; then the registration ends."""
        node, epoch = self._role.node, registration.broker_epoch
        if self._stops_in < 0:
            if self._setting.world.chance(0.003, "controlled shutdown"):
                self._log.metadata.publish(
                    lambda image: _some(plan_begin_controlled_shutdown(image, node, epoch))
                )
                self._stops_in = 50
            return False
        self._stops_in -= 1
        leads = any(
            state.leadership.leader == node
            for topic in self._log.image.topics.values()
            for state in topic.partitions
        )
        if self._stops_in and (leads or self._accepted):
            return False
        self._log.metadata.publish(lambda image: _some(plan_fence_broker(image, node, epoch)))
        return True

    # --- the controller ----------------------------------------------------------------------------------

    def _observe(self, registration: Registration) -> None:
        """The controller watches all others, and the others the controller."""
        image, node = self._log.image, self._role.node
        controller = image.controller.node_id
        watched = set(image.brokers) - {node} if self._control else {controller} - {node, NO_NODE}
        known = {one: image.brokers[one] for one in watched if one in image.brokers}
        dead = self._dead_of(known)
        if dead or image is not self._planned:
            self._do_what_is_due(registration, [(one, known[one].broker_epoch) for one in dead])
        if not self._control and self._setting.world.chance(0.002, "rival controller"):
            node, epoch = self._role.node, registration.broker_epoch
            elect = registration.fenced(lambda now: [plan_elect_controller(now, node, epoch)])
            self._log.metadata.publish(elect)
            self._note_control(registration)

    def _dead_of(self, known: Mapping[int, RegisteredBroker]) -> Sequence[int]:
        """Once an interval; it would not count more often."""
        if self._process.monotonic_ms() - self._looked_ms < HEARTBEAT_MS:
            return ()
        found = read_heartbeats(self._log.store, sorted(known))
        self._looked_ms = self._process.monotonic_ms()
        return self._observer.look(known, found, now_ms=self._looked_ms)

    def _do_what_is_due(self, registration: Registration, dead: Sequence[tuple[int, int]]) -> None:
        """With the plan of the broker's controller, which has itself elected if it has to."""
        known = (registration.node_id, registration.broker_epoch)
        duties = Duties(registration=known, dead=tuple(dead), assigning=Assigning(lambda _: _ROOT_CONFIG))
        if dead:
            self._setting.world.met["taken for dead"] += 1
        image = self._log.image
        plan = functools.partial(duties.plan, on_refused=_not_expected)
        if plan(image):
            self._log.metadata.publish(plan)
        elif not dead:
            self._planned = image
        self._note_control(registration)

    def _note_control(self, registration: Registration) -> None:
        now = self._log.image.controller
        if now.broker_epoch == registration.broker_epoch and now.controller_epoch != self._control:
            self._control = now.controller_epoch
            self._setting.world.met["controllers elected"] += 1

    def _move_leaderships(self) -> None:
        """By what it was once elected as, which may be over."""
        epoch = self._control
        plan = self._dice.choice(
            (lambda image: elections.plan_preferred(image, controller_epoch=epoch), self._planned_move)
        )
        self._log.metadata.publish(self._current().fenced(plan))

    def _planned_move(self, image: Image) -> Sequence[Action]:
        """Of any partition, to any that can."""
        names = [name for name in image.topics if name in {TOPICS[0], OFFSETS_TOPIC}]
        topic = image.topics[self._dice.choice(names)]
        state = self._dice.choice(topic.partitions)
        usable = sorted(selectors.usable_brokers(image) & set(state.leadership.replicas))
        if not usable:
            return []
        wanted = {(topic.topic_id, state.partition): self._dice.choice(usable)}
        return _some(plan_elect_leaders(image, wanted, controller_epoch=self._control))

    # --- records -----------------------------------------------------------------------------------------

    def _leads(self, image: Image, partition: int, of: str = TOPICS[0]) -> bool:
        topic = image.topics.get(of)
        if topic is None or partition >= len(topic.partitions):
            return False
        return topic.partitions[partition].leadership.leader == self._role.node

    def _accept(self) -> None:
        """As the event loop does: all by one image, which is not asked for again before it is published."""
        image = self._log.image
        inbox = self._role.inbox.copy()
        self._role.inbox.clear()
        for sent in inbox:
            if isinstance(sent, Asked):
                assert self._coordinators is not None
                self._coordinators.read(sent)
                continue
            if not self._leads(image, sent.partition, sent.topic):
                self._setting.world.met["sent to another than the leader"] += 1
                sent.told(PartOutcome(error=_NOT_LED))
                continue
            topic = image.topics[sent.topic]
            epoch = topic.partitions[sent.partition].leadership.leader_epoch
            is_lost = self._setting.world.chance(0.03, "acknowledgement lost")
            told = _nobody if is_lost else sent.told
            self._accepted.append((sent.part(image, topic.topic_id, epoch), told))

    def _coordinate(self, coordinators: Coordinators, registration: Registration, *, hangs: bool) -> None:
        """What the loop has its threads do, and what it has handed in to be published.

        `hangs`: the publisher does, for longer than clients wait; the loop goes on, and reads what comes.
        """
        coordinators.loop.turn()
        while coordinators.loop.do_a_job():
            pass
        publishing = coordinators.publishing
        self._accepted += publishing.parts
        publishing.parts.clear()
        if hangs:
            return
        if self._accepted and self._setting.world.chance(self._hangs(), "publisher hangs"):
            self._hangs_until_ms = self._process.monotonic_ms() + self._dice.choice((1_000, 2_500, 4_000))
            return
        while publishing.plans:
            plan, told = publishing.plans.pop(0)
            try:
                result = self._log.metadata.publish(registration.fenced(plan))
            except (FencedError, FatalStorageError) as error:
                told(None, error)
                raise
            except SparklogError as error:
                told(None, error)
            else:
                coordinators.root_has_news()
                told(result, None)
            coordinators.loop.turn()

    def _hangs(self) -> float:
        """More often with what is of the first protocol, and most often with offsets, which are few."""
        said = [part.transaction for part, _ in self._accepted if part.transaction is not None]
        if any(one.group is not None for one in said):
            return 0.4
        return 0.2 if any(one.opens_ms == NEVER_OPENS for one in said) else 0.02

    def _publish(self) -> None:
        """All that was accepted, in one commit; who is not told asks again."""
        accepted, self._accepted = self._accepted, []
        try:
            outcomes = self._writer.write([part for part, _ in accepted])
        except FencedError:
            self._accepted = accepted + self._accepted
            raise
        except (RetriableError, StorageError) as error:
            for _, told in accepted:
                told(PartOutcome(error=error))
            raise
        if self._coordinators is not None:
            self._coordinators.root_has_news()
        for (_, told), outcome in zip(accepted, outcomes, strict=True):
            if getattr(outcome.error, "code", "") == "NOT_LEADER":
                self._setting.world.met["accepted in an epoch that was over"] += 1
            told(outcome)
        if self._coordinators is not None:
            self._coordinators.loop.turn()

    def _answer_all(self, outcome: PartOutcome) -> None:
        accepted, self._accepted = self._accepted, []
        for _, told in accepted:
            told(outcome)


def _nobody(_: PartOutcome) -> None:
    """The connection is gone."""


def _not_expected(error: Exception) -> None:
    """Plans of ours are refused nothing here."""
    raise error


def _some(action: Action | None) -> Sequence[Action]:
    return [] if action is None else [action]
