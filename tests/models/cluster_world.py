"""The world of cluster.py: brokers, the image that they share, safeguards, what breaks if one is missing."""

from dataclasses import dataclass
from typing import NamedTuple

from tests.models.bits import bit, has
from tests.models.explorer import Model, Violation, replaced

NOBODY = -1
NONE = 0  # epochs count from 1
Part = tuple[int, int, int]  # record, partition, and the leader epoch under which it was accepted
Commit = tuple[int, int]  # record, and that epoch


class Image(NamedTuple):
    registered: tuple[int, ...]  # by node: the epoch of its registration; NONE: none, or fenced
    leaders: tuple[tuple[int, int], ...]  # by partition: who leads it, and the leader epoch
    logs: tuple[tuple[Commit, ...], ...]  # by partition
    controller: int = NOBODY
    controller_epoch: int = NONE
    registrations: int = 0  # so far: the next one's epoch is one more


class Broker(NamedTuple):
    """A process; several of them may take themselves for the same node."""

    node: int
    image: Image
    at: str = "up"
    joins: int = 0  # how often it may register yet
    epoch: int = NONE  # of its registration, as far as it knows
    control: int = NONE  # the controller epoch in which it was elected
    parts: tuple[Part, ...] = ()  # accepted, and not published yet
    # By partition: the leader epoch for which it was loaded, and the records that it has in memory.
    memory: tuple[tuple[int, int], ...] = ()
    age: int = 0  # of its image, by true time: 1 is too old
    awake: int = 0  # the same by a clock that stands still while the machine sleeps


class State(NamedTuple):
    processes: tuple[Broker, ...]
    image: Image
    # By partition and leader epoch, by controller epoch: the registration that was elected.
    terms: tuple[tuple[int, ...], ...]
    controls: tuple[int, ...]
    moves: int  # of controllers, left
    elections: int  # likewise
    sent: int = 0  # records of clients, so far
    acknowledged: int = 0
    denied: int = 0  # records whose clients were told: not here, try another


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The safeguards, as they should be."""

    checks_registration: bool = True  # what a broker commits says its registration, and that has to stand
    checks_leader: bool = True  # ... and leads what it appends to
    checks_epoch: bool = True  # ... in the epoch in which it accepted it
    fence_ends_leading: bool = True  # in the same commit, with an epoch of nobody's
    epoch_rises: bool = True  # with each change of the leader
    epoch_of_newest: bool = True  # one more than the newest image's, not than the controller's own
    checks_controller: bool = True  # its actions say its epoch, and that has to be the newest
    elected_once: bool = True  # an election names the epoch after the newest image's, or does not apply
    drops_lost_parts: bool = True  # a part whose leadership is lost goes out of its group ...
    answers_each_part: bool = True  # ... and its client is told so
    keeps_the_rest: bool = True  # ... and the others' are not
    loads: bool = True  # what the log says, before it answers
    loads_each_epoch: bool = True  # again, should it have lost and got the role between two looks
    resigns_at_image: bool = True  # that takes the role away, before the next answer
    bounds_age: bool = True  # of the image that it answers by
    by_boot_time: bool = True  # ... which does not stand still with the machine


class ClusterWorld(Model):
    """Everything but the steps."""

    def __init__(
        self,
        rules: Rules,
        *,
        nodes: tuple[int, ...] = (0, 1),
        joins: tuple[int, ...] = (),
        partitions: int = 1,
        records: int = 0,
        moves: int = 2,
        elections: int = 0,
        reads: bool = False,
        sleeps: bool = False,
        without: tuple[str, ...] = (),
    ) -> None:
        """Node 0 is registered, leads all partitions and is controller; all others are registered as well.

        Args:
            nodes: of each process, the node that it is; the first of each is registered.
            joins: how often each of them may register (again).
            reads, sleeps: images become old; and machines are suspended.
        """
        leaving = set(without)
        if not reads:
            leaving |= {"tick", "load", "answer"}
        if not sleeps:
            leaving |= {"sleep"}
        super().__init__(without=tuple(leaving))
        self.rules, self.nodes, self.reads = rules, nodes, reads
        self.joins = (*joins, *[0] * (len(nodes) - len(joins)))
        self.partitions, self.records, self.moves, self.elections = partitions, records, moves, elections
        self.process_names = tuple(
            f"broker {node}{' again' if node in nodes[:index] else ''}" for index, node in enumerate(nodes)
        )

    def initial(self) -> State:
        count = max(self.nodes) + 1
        image = Image(
            registered=tuple(range(1, count + 1)),
            leaders=((0, 1),) * self.partitions,
            logs=((),) * self.partitions,
            controller=0,
            controller_epoch=1,
            registrations=count,
        )
        empty = ((NONE, 0),) * self.partitions
        processes = []
        for index, node in enumerate(self.nodes):
            first = node not in self.nodes[:index]
            processes.append(
                Broker(
                    node,
                    image,
                    joins=self.joins[index],
                    epoch=node + 1 if first else NONE,
                    control=1 if first and node == 0 else NONE,
                    memory=empty,
                )
            )
        terms = ((NONE, 1),) * self.partitions
        return State(tuple(processes), image, terms, (NONE, 1), self.moves, self.elections)

    # --- what a broker believes, by the image that it has -------------------------------------------------

    def is_registered(self, image: Image, p: Broker) -> bool:
        return p.epoch != NONE and image.registered[p.node] == p.epoch

    def leads(self, image: Image, p: Broker, partition: int) -> bool:
        return self.is_registered(image, p) and image.leaders[partition][0] == p.node

    # --- what actions do to an image ----------------------------------------------------------------------

    def fenced(self, image: Image, node: int) -> Image:
        leaders = image.leaders
        if self.rules.fence_ends_leading:
            leaders = tuple((NOBODY, epoch + 1) if led == node else (led, epoch) for led, epoch in leaders)
        controller = NOBODY if image.controller == node else image.controller
        return image._replace(
            registered=replaced(image.registered, node, NONE), leaders=leaders, controller=controller
        )

    # --- what a commit means ------------------------------------------------------------------------------

    def after(self, s: State, i: int, p: Broker) -> State:
        return s._replace(processes=replaced(s.processes, i, p))

    def shown(self, s: State, i: int, p: Broker) -> State:
        """The process has published: it knows the newest image."""
        return self.after(s, i, p._replace(image=s.image, age=0, awake=0))

    def committed(self, s: State, image: Image) -> State | Violation:
        """One more commit, after which this is the image."""
        before = s.image
        if image.controller_epoch < before.controller_epoch:
            return Violation(f"falls: controller epoch {before.controller_epoch} to {image.controller_epoch}")
        terms = list(s.terms)
        for q, ((led, old), (leads, epoch)) in enumerate(zip(before.leaders, image.leaders, strict=True)):
            if epoch < old:
                return Violation(f"falls: leader epoch {old} to {epoch}")
            if (led, old) == (leads, epoch):
                continue
            by = NONE if leads == NOBODY else image.registered[leads]
            known = terms[q][epoch] if epoch < len(terms[q]) else None
            if known is not None and known != by:
                return Violation(f"two leaders: registrations {known} and {by} in leader epoch {epoch}")
            terms[q] = (*terms[q], *[NONE] * (epoch - len(terms[q])), by) if known is None else terms[q]
        return s._replace(image=image, terms=tuple(terms))

    def appended(self, s: State, p: Broker, parts: tuple[Part, ...]) -> State | Violation:
        """These parts are in the log now."""
        logs = list(s.image.logs)
        for record, q, epoch in parts:
            if not self.is_registered(s.image, p):
                return Violation(f"fenced: registration {p.epoch} publishes record {record}")
            if any(of > epoch for _, of in logs[q]) or s.image.leaders[q][1] > epoch:
                return Violation(f"deposed: record {record} of leader epoch {epoch} comes after a later one")
            wrong = self.wrong_leader(s, p, q, epoch)
            if wrong is not None:
                return wrong
            logs[q] = (*logs[q], (record, epoch))
        return self.checked(s._replace(image=s.image._replace(logs=tuple(logs))))

    def wrong_leader(self, s: State, p: Broker, partition: int, epoch: int) -> Violation | None:
        """A registration that was not elected in an epoch acts in it."""
        elected = s.terms[partition][epoch]
        if elected == p.epoch:
            return None
        return Violation(f"two leaders: registrations {elected} and {p.epoch} in leader epoch {epoch}")

    def checked(self, s: State) -> State | Violation:
        found = 0
        for log in s.image.logs:
            for record, _ in log:
                if has(found | s.denied, record):
                    return Violation(f"doubled: record {record}")
                found |= bit(record)
        if s.acknowledged & ~found:
            return Violation("lost: a record was acknowledged, and is not in the log")
        return s

    def known_of(self, log: tuple[Commit, ...]) -> int:
        return sum(bit(record) for record, _ in log)
