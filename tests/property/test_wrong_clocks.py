"""Whatever the clocks of those who maintain a root say, nobody is forgotten who is at work.

Writers' clocks are right. Rounds of maintenance come from machines whose clocks are behind, or ahead, by
days; of a store that has a clock of its own both are asked: the earlier one ends things, the later one is
stored. The counterexample without the newest commit's time: a round by a clock that is behind, and a right
one a minute later.
"""

from dataclasses import dataclass, field

from hypothesis import example, given
from hypothesis import strategies as st

from sparklog.metadata import (
    DraftExtent,
    Image,
    plan_allocate_producer_ids,
    plan_append,
    plan_begin_producer,
    plan_create_topic,
    plan_end_transaction,
    plan_expire_producers,
    plan_forget_transactions,
)
from sparklog.metadata.model.actions import Action, ImageBuilder
from sparklog.metadata.model.image import empty_image

TOPIC = "T" * 22
DAY_MS = 86_400_000
EXPIRATION_MS = DAY_MS
BEGAN_MS = 1_700_000_000_000
PRODUCERS = 3
Step = tuple[str, int]

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, PRODUCERS - 1)),
        st.tuples(st.just("use"), st.integers(-9 * DAY_MS, 0)),  # by a broker whose clock is so far behind
        st.tuples(st.just("round"), st.integers(-9 * DAY_MS, 0)),  # in a directory: there is no other clock
        st.tuples(st.just("round beside a store"), st.integers(-9 * DAY_MS, 9 * DAY_MS)),
        st.tuples(st.just("wait"), st.integers(0, 2 * DAY_MS)),
    ),
    max_size=20,
)


@dataclass(slots=True)
class World:
    """A root, and what time it is really."""

    image: Image = field(default_factory=lambda: empty_image("C" * 22))
    now_ms: int = BEGAN_MS
    written_ms: dict[int, int] = field(default_factory=dict)
    last: dict[int, tuple[int, int]] = field(default_factory=dict)  # epoch and sequence
    used_ms: int = 0

    def apply(self, *actions: Action, at_ms: int) -> None:
        """A commit by somebody whose clock says so."""
        builder, commit = ImageBuilder(self.image), self.image.commit + 1
        builder.apply(actions, commit=commit, commit_uuid=f"{commit:022d}", timestamp_ms=at_ms)
        self.image = builder.image()

    def write(self, producer: int) -> None:
        epoch, sequence = self.last.get(producer, (-1, 0))
        known = producer in self.image.partition_of(TOPIC, 0).producers
        epoch, sequence = (epoch, sequence + 1) if known else (epoch + 1, 0)
        part = DraftExtent(
            topic_id=TOPIC,
            partition=0,
            segment=f"segments/{'a' * 32}/00000000.{self.image.commit}.log",
            position=self.image.commit * 100,
            size=100,
            record_count=1,
            max_timestamp_ms=1_400_000_000_000,  # event times, as a loader has them
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        self.apply(plan_append(self.image, [part]), at_ms=self.now_ms)
        self.last[producer], self.written_ms[producer] = (epoch, sequence), self.now_ms

    def round(self, here_ms: int, store_ms: int) -> None:
        """Of maintenance, and a look for transactional ids that nobody uses."""
        earlier_ms, later_ms = min(here_ms, store_ms), max(here_ms, store_ms)
        expire = plan_expire_producers(self.image, earlier_ms, EXPIRATION_MS, latest_ms=later_ms)
        forget = plan_forget_transactions(self.image, earlier_ms, EXPIRATION_MS)
        if expire is not None:
            self.apply(expire, at_ms=here_ms)
        if forget is not None:
            self.apply(forget, at_ms=here_ms)

    def use(self, here_ms: int) -> None:
        """A transaction of an id, by a broker whose clock says so."""
        begun = plan_begin_producer(self.image, "app", timeout_ms=60_000, now_ms=here_ms)
        self.apply(*begun.actions, at_ms=here_ms)
        ended = plan_end_transaction(
            self.image,
            "app",
            begun.producer_id,
            begun.producer_epoch,
            committed=False,
            second=True,
            now_ms=here_ms,
        )
        self.apply(*ended.actions, at_ms=here_ms)
        self.used_ms = self.now_ms

    def take(self, step: Step) -> None:
        name, number = step
        if name == "write":
            self.write(number)
        elif name == "use":
            self.write(0)  # others write meanwhile, by right clocks
            self.use(self.now_ms + number)
        elif name == "round":
            self.round(self.now_ms + number, self.now_ms + number)
        elif name == "round beside a store":
            self.round(self.now_ms + number, self.now_ms)
        else:
            self.now_ms += number


@example([("write", 0), ("round", -2 * DAY_MS), ("wait", 60_000), ("round", 0)])
@example([("round", 0), ("wait", 5 * DAY_MS), ("write", 0), ("round", -2 * DAY_MS), ("round", 0)])
@example([("use", -8 * DAY_MS), ("round", 0)])
@given(STEPS)
def test_nobody_who_is_at_work_is_forgotten(steps: list[Step]) -> None:
    world = World()
    world.apply(
        plan_create_topic(world.image, "t", 1, topic_id=TOPIC),
        plan_allocate_producer_ids(world.image, PRODUCERS),
        at_ms=world.now_ms,
    )
    for step in steps:
        world.take(step)
        known = world.image.partition_of(TOPIC, 0).producers
        for producer, written_ms in world.written_ms.items():
            assert producer in known or world.now_ms - written_ms >= EXPIRATION_MS
        assert "app" in world.image.transactions or world.now_ms - world.used_ms >= EXPIRATION_MS


def test_a_mark_of_the_future_only_delays() -> None:
    world = World()
    world.apply(
        plan_create_topic(world.image, "t", 1, topic_id=TOPIC),
        plan_allocate_producer_ids(world.image, PRODUCERS),
        at_ms=world.now_ms,
    )
    world.write(0)
    ahead_ms = 9 * DAY_MS
    world.round(world.now_ms + ahead_ms, world.now_ms)
    for days in range(9):
        world.take(("wait", DAY_MS))
        world.round(world.now_ms, world.now_ms)
        assert 0 in world.image.partition_of(TOPIC, 0).producers, days
    world.take(("wait", DAY_MS))
    world.round(world.now_ms, world.now_ms)
    assert not world.image.partition_of(TOPIC, 0).producers
