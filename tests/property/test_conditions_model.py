"""Random parts and images: another publisher takes of a broker's commit what the broker would take itself.

That is what the decisions on its parts say; and it applies.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from hypothesis import event, given, settings
from hypothesis import strategies as st

from sparklog.client.publish import BrokerAsks, encode_broker_payload, interpret_request
from sparklog.format.encode import EncodeOptions, encode_batches
from sparklog.format.schema import RecordColumns
from sparklog.metadata import (
    DraftExtent,
    ExpireProducers,
    Image,
    new_id,
    plan_append,
    plan_delete_topic,
    replacement,
)
from sparklog_server.cluster.membership import Registration
from sparklog_server.publish.decisions import decide
from sparklog_server.publish.group_commit import CommitPlan, Written
from sparklog_server.publish.parts import AppendPart, Run, make_runs
from tests.metadata.cluster_roots import TOPIC, applied, cluster, epoch_of, led

PARTITIONS, BROKER, OTHER = 2, 1, 2


@dataclass(frozen=True)
class Sent:
    """A batch; without a producer if its id is -1."""

    partition: int
    producer_id: int
    epoch: int
    sequence: int
    count: int
    time_ms: int
    is_stamped: bool = False
    leader_epoch: int = 1


SENT = st.builds(
    Sent,
    partition=st.integers(0, PARTITIONS - 1),
    producer_id=st.sampled_from([-1, 0, 0, 0, 1]),
    epoch=st.sampled_from([0, 0, 0, 1]),
    sequence=st.integers(0, 4),
    count=st.integers(1, 2),
    time_ms=st.integers(1, 3),
    is_stamped=st.sampled_from([False, False, False, True]),
    leader_epoch=st.sampled_from([1, 1, 1, 1, 3]),
)
# What changes an image: an append, or the name of something else.
STEPS = st.lists(
    st.one_of(SENT, st.sampled_from(["move", "bounce", "forget", "merge", "delete"])), max_size=6
)
ENCODED = {
    (count, time_ms): encode_batches(
        RecordColumns(
            key=None, value=pa.array([b"x"] * count, pa.binary()), timestamp_ms=np.full(count, time_ms)
        ),
        EncodeOptions(),
    )
    for count in (1, 2)
    for time_ms in (1, 2, 3)
}


def draft_of(one: Sent, count: int, newest_ms: int) -> DraftExtent:
    has_producer = one.producer_id >= 0
    return DraftExtent(
        topic_id=TOPIC,
        partition=one.partition,
        segment=f"segments/{new_id()}/0.log",
        position=0,
        size=100,
        record_count=count,
        max_timestamp_ms=newest_ms,
        producer_id=one.producer_id,
        producer_epoch=one.epoch if has_producer else -1,
        base_sequence=one.sequence if has_producer else -1,
    )


def changed(image: Image, steps: Sequence[Sent | str]) -> Image:
    """Steps that do not apply are left out."""
    for step in steps:
        if "orders" not in image.topics:
            return image
        if isinstance(step, Sent):
            try:
                image = applied(image, plan_append(image, [draft_of(step, step.count, step.time_ms)]))
            except Exception:
                continue
        elif step == "delete":
            image = applied(image, plan_delete_topic(image, "orders"))
        elif step == "forget":
            image = applied(image, ExpireProducers(time_ms=0, marks_only=True))
            image = applied(image, ExpireProducers(time_ms=1))
        elif step == "merge":
            image = merged(image)
        else:
            image = led(image, {0: OTHER})
            image = led(image, {0: BROKER}) if step == "bounce" else image
    return image


def merged(image: Image) -> Image:
    """No extent of partition 0 shows any more whose batches it holds; of what is forgotten already."""
    state = image.partition("orders", 0)
    if not len(state.extents) or state.forgotten.end_offset < state.log_end_offset:
        return image
    columns, (first, *_) = state.extents.columns(), list(state.extents)
    values = {name: getattr(first, name) for name in first.__struct_fields__}
    ids = {"producer_id": -1, "producer_epoch": -1, "base_sequence": -1}
    one = type(first)(**{**values, **ids, "record_count": state.log_end_offset})
    return applied(image, replacement(columns, [one], topic_id=state.topic_id, partition=0))


def part_of(one: Sent) -> AppendPart:
    has_producer = one.producer_id >= 0
    return AppendPart(
        topic_id=TOPIC,
        topic="orders",
        partition=one.partition,
        encoded=ENCODED[one.count, one.time_ms],
        producer_id=one.producer_id,
        producer_epoch=one.epoch if has_producer else -1,
        base_sequence=one.sequence if has_producer else -1,
        log_append_time_ms=one.time_ms if one.is_stamped else -1,
        leader_epoch=one.leader_epoch,
    )


@settings(deadline=None)
@given(before=STEPS, group=st.lists(SENT, min_size=1, max_size=8), after=STEPS)
def test_everybody_takes_what_was_decided(
    before: list[Sent | str], group: list[Sent], after: list[Sent | str]
) -> None:
    image = changed(led(cluster(), [BROKER] * 3), before)
    registration = Registration(node_id=BROKER, broker_epoch=epoch_of(image, BROKER), incarnation_id="i" * 22)
    parts = [part_of(one) for one in group]
    _, decided = decide(image, parts, BROKER)
    runs = make_runs(parts, [index for index, one in enumerate(decided) if one.holds], 1 << 20)
    written = []
    for run in runs:
        newest_ms = max(group[index].time_ms for index in run.indices)
        draft = draft_of(group[run.indices[0]], run.record_count, newest_ms)
        written.append(Written(run, run.encoded(), draft, False))
    commit = CommitPlan(lambda: registration, image, parts, written)
    now = changed(image, after)
    own = list(commit(now))
    accepted = [run.indices for run in runs if not commit.refused.keys() & set(run.indices)]

    assert accepted == by_parts(now, parts, runs)
    asks = BrokerAsks(
        accepted=tuple(one.accepted for one in written),
        node_id=BROKER,
        broker_epoch=registration.broker_epoch,
    )
    others = list(interpret_request(encode_broker_payload(asks))(now))
    if own or now is not image:  # unchanged, it is not judged again: what was written is published
        assert others == own
    if own:
        applied(now, *own)
    event(f"{len(accepted)} of {len(runs)} runs, {'as it was' if now is image else 'changed'}")


def by_parts(image: Image, parts: Sequence[AppendPart], runs: Sequence[Run]) -> list[list[int]]:
    """The runs of which each part is to be written, but for those behind one that is not."""
    indices = sorted(index for run in runs for index in run.indices)
    _, decided = decide(image, [parts[index] for index in indices], BROKER)
    by_index = dict(zip(indices, decided, strict=True))
    found: list[list[int]] = []
    broken = set()
    for run in runs:
        if run.first.partition not in broken and all(by_index[index].holds for index in run.indices):
            found.append(run.indices)
        else:
            broken.add(run.first.partition)
    return found
