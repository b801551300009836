"""Any history of transactions: the same as of the naive model; replayed, and from a snapshot, the same."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparklog.errors import SparklogError
from sparklog.metadata import (
    Action,
    ExpireProducers,
    ForgetTransactions,
    Image,
    plan_append,
    plan_delete_topic,
)
from sparklog.metadata.documents.document import decode_commit, encode_commit
from sparklog.metadata.documents.snapshot import read_snapshot, write_snapshot
from sparklog.metadata.model.actions import ImageBuilder
from sparklog.metadata.model.image import empty_image
from sparklog.metadata.model.transaction_values import transactions_of
from sparklog.storage import MemoryStore
from tests.metadata.naive_transactions import NOBODY, NaiveRoot, Place, Producer
from tests.metadata.test_document import header
from tests.metadata.transacting import OTHER, TOPIC, Root, draft, uuid_of

PLACES: list[Place] = [(TOPIC, 0), (TOPIC, 1), (OTHER, 0)]
NAMES = ("app", "job")
PLAIN = 1_000  # the id of a producer without transactions
STEPS = st.lists(st.tuples(st.integers(0, 13), *[st.integers(0, 11)] * 4), max_size=40)


class Recorded(Root):
    """Remembers its commits."""

    def __init__(self) -> None:
        self.commits: list[Sequence[Action]] = []
        super().__init__(partitions=2)

    def apply(self, *actions: Action) -> None:
        super().apply(*actions)
        self.commits.append(actions)


class Both:
    """The root and the model, asked the same."""

    def __init__(self) -> None:
        self.root, self.naive = Recorded(), NaiveRoot(PLACES)
        self.segments: list[str] = []
        self.plain: dict[Place, int] = {}

    def step(self, kind: int, a: int, b: int, c: int, d: int) -> None:
        name, place = NAMES[a % 2], PLACES[b % 3]
        match kind:
            case 0 | 1:
                self.begin(name, b)
            case 2 | 3:
                self.add(name, place, c)
            case 4 | 5 | 6 | 7:
                self.stage(name, place, c, d)
            case 8 | 9 | 10:
                self.end(name, b, c, d)
            case 11:
                self.naive.abort(name)
                self.root.abort(name)
            case 12:
                self.append(place, c)
            case _:
                self.other(name, b)

    def begin(self, name: str, how: int) -> None:
        known = NOBODY if how % 3 == 0 else self.producer(name, how // 3)
        self.same(self.naive.begin(name, known), lambda: self.root.begin(name, known))

    def add(self, name: str, place: Place, how: int) -> None:
        producer = self.producer(name, how)
        expected = self.naive.add(name, producer, place)
        self.same(expected, lambda: self.root.add(producer, place[1], name=name, topic_id=place[0]))

    def stage(self, name: str, place: Place, how: int, opens: int) -> None:
        producer = self.producer(name, how if how > 8 else 0)
        epoch, last = self.naive.last.get((place, producer[0]), NOBODY)
        following = last + 1 if epoch == producer[1] else 0
        sequence = max(0, following + (0, 0, 0, 0, 1, -1, 0, 5)[how % 8])
        segment = f"segments/w/{len(self.segments):08d}.0.log"
        self.segments.append(segment)
        batch = sequence, 1 + how % 3, segment
        where = {"topic_id": place[0], "partition": place[1], "segment": segment}
        self.same(
            self.naive.stage(producer, place, batch, opens=opens > 5),
            lambda: self.root.stage(producer, sequence, 1 + how % 3, opens=opens > 5, **where),
        )

    def end(self, name: str, how: int, who: int, number: int) -> None:
        producer = self.producer(name, who if who > 6 else 0)
        one = self.naive.ids.get(name)
        now = 0 if one is None else one.number
        asked = (-1, now, now, now - 1)[number % 4]
        fields = {"committed": how % 2 == 0, "second": how % 4 > 1, "number": asked}
        expected = self.naive.end(name, producer, **fields)  # type: ignore[arg-type]
        self.same(expected, lambda: self.root.end(producer, name=name, **fields))  # type: ignore[arg-type]

    def append(self, place: Place, count: int) -> None:
        if place not in self.naive.logs:
            return
        sequence = self.plain.get(place, 0)
        self.plain[place] = sequence + 1 + count
        segment = f"segments/w/{len(self.segments):08d}.0.log"
        self.segments.append(segment)
        one = draft((PLAIN, 0), sequence, 1 + count, topic_id=place[0], partition=place[1], segment=segment)
        self.root.apply(plan_append(self.root.image, [one]))
        self.naive.append(place, (sequence, 1 + count, segment))

    def other(self, name: str, how: int) -> None:
        if how == 0 and "other" in self.root.image.topics:
            self.root.apply(plan_delete_topic(self.root.image, "other"))
            self.naive.delete(OTHER)
        elif how < 4:
            one = self.naive.ids.get(name)
            if one is not None and one.phase != "ongoing":
                self.root.apply(ForgetTransactions(transactional_ids=(name,)))
            self.naive.forget(name)
        else:
            self.root.apply(ExpireProducers(time_ms=1, marks_only=True))

    def producer(self, name: str, how: int) -> Producer:
        """The producer of now, or another."""
        one = self.naive.ids.get(name)
        if one is None:
            return 77, 0
        number, epoch = one.producer
        others = [(number, epoch), (number, epoch), (number, max(0, epoch - 1)), (number, epoch + 1), (77, 0)]
        return others[how % 5]

    def same(self, expected: str, act: Callable[[], object]) -> None:
        if not expected:
            act()
            return
        before = self.root.image
        with pytest.raises(SparklogError) as raised:
            act()
        assert raised.value.code == expected
        assert self.root.image is before

    def check(self) -> None:
        image, naive = self.root.image, self.naive
        for (topic_id, partition), log in naive.logs.items():
            state = image.partition_of(topic_id, partition)
            found = [(one.base_sequence, one.record_count, one.segment) for one in state.extents]
            assert found == log
            assert state.log_end_offset == sum(count for _, count, _ in log)
        assert set(image.transactions) == set(naive.ids)
        for name, one in naive.ids.items():
            real = image.transactions[name]
            assert (real.producer_id, real.producer_epoch) == one.producer
            assert (real.phase, real.number) == (one.phase, one.number)
            staged = {
                place: [(e.base_sequence, e.record_count, e.segment) for e in extents]
                for place, extents in real.staged.items()
            }
            expected: dict[Place, list[tuple[int, int, str]]] = {}
            for place, batch in one.staged:
                expected.setdefault(place, []).append(batch)
            assert staged == expected
        live = naive.live()
        assert [image.refers_to(one) for one in self.segments] == [one in live for one in self.segments]
        derived = transactions_of(image.transactions.values())
        for field in ("by_producer", "deadlines", "staging", "staged_extents", "staged_bytes", "weight"):
            assert getattr(derived, field) == getattr(image.transactions, field)


@pytest.mark.slow
@given(STEPS)
@settings(max_examples=150, deadline=None)
def test_the_root_is_as_the_model(steps: list[tuple[int, int, int, int, int]]) -> None:
    both = Both()
    for one in steps:
        both.step(*one)
        both.check()


@given(STEPS, st.integers(0, 40))
@settings(max_examples=60, deadline=None)
def test_replay_and_snapshots_give_the_same(steps: list[tuple[int, int, int, int, int]], taken: int) -> None:
    both = Both()
    images = [both.root.image]
    for one in steps:
        both.step(*one)
        images.append(both.root.image)
    image = both.root.image
    assert replayed(empty_image(image.cluster_id), both.root.commits) == image
    base = images[min(taken, len(images) - 1)]
    store = MemoryStore()
    write_snapshot(store, base, timestamp_ms=1)
    read = read_snapshot(store, base.commit, cluster_id=base.cluster_id)
    assert read == base
    assert read.transactions.staging == base.transactions.staging
    assert replayed(read, both.root.commits[base.commit + 1 :]) == image


def replayed(image: Image, commits: Sequence[Sequence[Action]]) -> Image:
    """By one builder, from bytes."""
    builder = ImageBuilder(image)
    for number, actions in enumerate(commits, image.commit + 1):
        data = encode_commit(header(commit=number), list(actions))
        _, decoded = decode_commit(data, where="memory", commit=number, cluster_id="C" * 22)
        assert decoded == tuple(actions)
        builder.apply(decoded, commit=number, commit_uuid=uuid_of(number))
    return builder.image()
