"""restore_root: what begins anew, what stays, and who notices it."""

import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from sparklog.clock import ManualClock
from sparklog.errors import FencedError, InvalidRequestError, RetriableError, SparklogError
from sparklog.metadata import (
    NO_NODE,
    ActionRefusedError,
    Image,
    JoinBroker,
    MetadataLog,
    RestoreRoot,
    SequenceCheck,
    SetConfigs,
    check_unknown,
    last_batch,
    new_id,
    plan_act_as_broker,
    plan_add_partitions,
    plan_add_to_transaction,
    plan_append,
    plan_begin_producer,
    plan_create_topic,
    plan_join_broker,
    plan_move_sweep_horizon,
    plan_restore_root,
)
from sparklog.metadata.documents.snapshot import read_snapshot
from sparklog.metadata.loading import LEASE_MS, read_incarnation, write_incarnation
from sparklog.metadata.model.restoring import MAX_BIRTHS_AHEAD, MAX_LEADER_EPOCH
from sparklog.metadata.requests import Posted, RequestBox
from sparklog.storage import LocalStore, MemoryStore
from tests.metadata.opened_logs import opened as opened_locally
from tests.metadata.opened_logs import set_config
from tests.metadata.remote_logs import REMOTE, counted, opened
from tests.metadata.transacting import TOPIC, Root, draft

NOW_MS = 1_790_000_000_000  # of 2026
LIFE = "R" * 22


def restored(root: Root, *, incarnation_id: str = LIFE, now_ms: int = NOW_MS) -> Image:
    root.apply(plan_restore_root(root.image, incarnation_id=incarnation_id, now_ms=now_ms))
    return root.image


def _append(root: Root, segment: str) -> None:
    root.apply(plan_append(root.image, [draft((7, 0), 0, 1, segment=segment)]))


def restore(log: MetadataLog, incarnation_id: str | None = None) -> str:
    """As the command does it, without the wait."""
    life = new_id() if incarnation_id is None else incarnation_id
    if log.store.traits.is_remote:
        write_incarnation(log.store, life)
    log.publish(lambda image: [plan_restore_root(image, incarnation_id=life, now_ms=NOW_MS)])
    return life


# --- effect ------------------------------------------------------------------------------------------


def test_producer_ids_are_far_above_those_of_the_lives_before() -> None:
    root = Root()
    root.begin()
    backup = root.image
    lost = [root.begin("other")[0] for _ in range(3)]
    root.image = backup
    first = restored(root).next_producer_id
    assert first > max(lost) + (1 << 40)
    root.image = backup
    again = restored(root, incarnation_id="S" * 22, now_ms=NOW_MS + 1_000)
    assert again.next_producer_id == first + (1 << 20)  # of a second, of the same backup
    root.image = backup
    behind = restored(root, now_ms=0)  # by a clock that is wrong: still far above
    assert behind.next_producer_id > backup.next_producer_id + (1 << 40)


def test_transactional_ids_have_producers_that_nobody_ever_had() -> None:
    root = Root()
    open_one, idle = root.begin("open"), root.begin("idle")
    root.add(open_one, 0, name="open", groups=["g"])
    root.stage(open_one, 0, 3)
    image = restored(root)
    for name, phase in (("open", "aborted"), ("idle", "empty")):
        found = image.transactions[name]
        assert (found.phase, found.producer_epoch, found.groups, found.staged) == (phase, 0, (), {})
        assert list(found.partitions) == []
        assert found.producer_id >= NOW_MS // 1000 << 20
    assert len({one.producer_id for one in image.transactions.values()}) == 2
    assert image.next_producer_id == max(one.producer_id for one in image.transactions.values()) + 1
    assert (image.transactions.staged_extents, image.transactions.staging) == (0, {})
    assert not image.transactions.deadlines
    for name, producer in (("open", open_one), ("idle", idle)):
        with pytest.raises(SparklogError, match=name):
            plan_add_to_transaction(image, name, *producer, partitions=[(TOPIC, 0)], now_ms=NOW_MS)
        with pytest.raises(FencedError, match=name):
            plan_begin_producer(
                image,
                name,
                timeout_ms=1,
                now_ms=NOW_MS,
                producer_id=producer[0],
                producer_epoch=producer[1],
            )
    again = root.begin("open")
    assert again == (image.transactions["open"].producer_id, 1)


def test_no_partition_knows_a_sequence_of_before() -> None:
    root = Root()
    root.append(7, 0, 2)
    state = restored(root).partition_of(TOPIC, 0)
    assert (state.producers, state.log_end_offset, state.restored_end_offset) == ({}, 2, 2)
    assert last_batch(state, 7) is None
    # A batch from after the backup is new by its time; the one that is there is told as such; else unknown.
    assert check_unknown(state, 7, 0, 1 << 30, 1, NOW_MS + 1) is SequenceCheck.NEXT
    assert check_unknown(state, 7, 0, 0, 2, 1) is SequenceCheck.DUPLICATE
    assert check_unknown(state, 7, 0, 1 << 30, 1, 1) is SequenceCheck.UNKNOWN


def test_leader_epochs_are_above_those_that_clients_have_seen() -> None:
    root = Root()
    join: JoinBroker = plan_join_broker(root.image, 1, incarnation_id="I" * 22)
    root.apply(join)
    image = restored(root)
    assert image.brokers[1].is_fenced
    assert image.controller.node_id == NO_NODE
    least = image.incarnation.leader_epoch
    assert least == NOW_MS // 1000 - 1_577_836_800
    for topic in image.topics.values():
        for state in topic.partitions:
            assert (state.leadership.leader, state.leadership.leader_epoch) == (NO_NODE, least)
    more = plan_add_partitions(image, "orders", 4)
    assert more is not None
    root.apply(more, plan_create_topic(image, "new", 1, topic_id="N" * 22))
    for topic_id, partition in ((TOPIC, 3), ("N" * 22, 0)):
        state = root.image.partition_of(topic_id, partition)
        assert (state.leadership.leader_epoch, state.restored_end_offset) == (least, 0)
    again = restored(root, incarnation_id="S" * 22)
    assert again.incarnation.leader_epoch == least + (1 << 20)


def test_what_was_staged_before_is_dead_whenever_it_was_born() -> None:
    root = Root()
    image = restored(root)
    assert image.birth == image.commit + (NOW_MS // 1000 << 20) == image.sweep_horizon
    lost = f"segments/{'a' * 32}/00000000.{image.commit + 1_000}.log"
    with pytest.raises(RetriableError, match="STAGING_EXPIRED"):
        _append(root, lost)
    _append(root, f"segments/{'a' * 32}/00000000.{image.birth}.log")
    assert plan_move_sweep_horizon(root.image, image.sweep_horizon) is None
    moved = plan_move_sweep_horizon(root.image, root.image.birth + 1)
    assert moved is not None
    root.apply(moved)


@pytest.mark.parametrize(
    "change",
    [
        {"incarnation_id": ""},
        {"incarnation_id": LIFE},
        {"producer_id": 0},
        {"leader_epoch": 1},
        {"leader_epoch": MAX_LEADER_EPOCH + 1},
        {"births_ahead": 1 << 40},
        {"births_ahead": MAX_BIRTHS_AHEAD + 1},
        {"time_ms": -1},
    ],
)
def test_numbers_only_grow(change: dict[str, object]) -> None:
    root = Root()
    restored(root)
    action = plan_restore_root(root.image, incarnation_id="S" * 22, now_ms=NOW_MS)
    with pytest.raises(ActionRefusedError, match="restore"):
        root.apply(msgspec.structs.replace(action, **change))
    root.apply(action)


def test_it_is_no_brokers_action() -> None:
    root = Root()
    root.apply(plan_join_broker(root.image, 1, incarnation_id="I" * 22))
    epoch = root.image.brokers[1].broker_epoch
    action = plan_restore_root(root.image, incarnation_id=LIFE, now_ms=NOW_MS)
    with pytest.raises(ActionRefusedError, match="among a broker's actions"):
        root.apply(*plan_act_as_broker(root.image, [action], node_id=1, broker_epoch=epoch))


def test_used_up_numbers_are_refused() -> None:
    root = Root()
    root.image = replace(root.image, next_producer_id=(1 << 63) - 2)
    with pytest.raises(InvalidRequestError, match="producer id"):
        plan_restore_root(root.image, incarnation_id=LIFE, now_ms=NOW_MS)


def test_snapshots_have_the_incarnation(clock: ManualClock) -> None:
    store = MemoryStore("tests", clock=clock)
    log = opened(store, clock)
    log.publish(lambda image: [plan_create_topic(image, "t", 2, topic_id=TOPIC)])
    restore(log)
    assert read_snapshot(store, log.write_snapshot(), cluster_id=log.cluster_id) == log.image


# --- who notices ---------------------------------------------------------------------------------------


def test_a_log_that_is_open_is_refused(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    store = LocalStore(tmp_path / "root")
    before, other = opened_locally(store), opened_locally(store)
    set_config(before, "a")
    life = restore(other)
    for _ in range(2):
        for call in (before.refresh, lambda: set_config(before, "b")):
            with pytest.raises(FencedError, match=f"found incarnation {life} of the root, expected none"):
                call()
    assert before.image.incarnation.incarnation_id == ""
    set_config(other, "c")  # who has restored it goes on
    assert set(opened_locally(LocalStore(tmp_path / "root")).refresh().configs) == {"a", "c"}


def test_one_that_has_seen_what_was_lost_is_refused(tmp_path: Path) -> None:
    """In whatever place of the restored log its last commit would be."""
    root, backup = tmp_path / "root", tmp_path / "backup"
    root.mkdir()
    before = opened_locally(LocalStore(root))
    set_config(before, "a")
    shutil.copytree(root, backup)
    for key in ("b", "c", "d"):
        set_config(before, key)
    shutil.rmtree(root)
    shutil.copytree(backup, root)
    restore(opened_locally(LocalStore(root)))
    for number in range(4):  # behind it, as long, and longer
        with pytest.raises(SparklogError, match=r"ROOT_RESTORED|sparklog root restore|two histories"):
            set_config(before, "lost")
        with pytest.raises(SparklogError, match=r"ROOT_RESTORED|sparklog root restore|two histories"):
            before.write_snapshot() if number else before.refuse_another_root()
        set_config(opened_locally(LocalStore(root)), f"new {number}")
    assert "lost" not in opened_locally(LocalStore(root)).image.configs


@pytest.fixture
def remote(clock: ManualClock) -> MemoryStore:
    return MemoryStore("tests", clock=clock, traits=REMOTE)


def test_on_an_object_store_a_publisher_looks_within_the_lease(
    remote: MemoryStore, clock: ManualClock
) -> None:
    before = opened(remote, clock)
    set_config(before, "a")
    with counted(remote) as requests:
        set_config(before, "b")
    assert requests == {"put_if_absent": 1}
    clock.advance_ms(LEASE_MS)
    with counted(remote) as requests:
        set_config(before, "c")
        set_config(before, "d")
    assert requests == {"open_read": 1, "put_if_absent": 2}
    write_incarnation(remote, LIFE)  # a restore begins
    clock.advance_ms(LEASE_MS)
    for _ in range(2):
        with pytest.raises(FencedError, match=f"found incarnation {LIFE} of the root, expected none"):
            set_config(before, "e")
    assert set(opened(remote, clock).image.configs) == {"a", "b", "c", "d"}


def test_a_publisher_that_was_suspended_looks(remote: MemoryStore, clock: ManualClock) -> None:
    """By its wall clock, when its monotonic one has stood still."""
    before = opened(remote, clock)
    set_config(before, "a")
    write_incarnation(remote, LIFE)
    clock.set_by_ms(LEASE_MS)
    with pytest.raises(FencedError, match="ROOT_RESTORED"):
        set_config(before, "b")


def test_who_opens_the_restored_root_goes_on(remote: MemoryStore, clock: ManualClock) -> None:
    life = restore(opened(remote, clock))
    after = opened(remote, clock)
    for key in ("a", "b"):
        clock.advance_ms(LEASE_MS)
        set_config(after, key)
    assert read_incarnation(remote) == life
    remote.delete("__cluster_metadata/incarnation")  # of a copy by hand: nothing is to be told from that
    clock.advance_ms(LEASE_MS)
    set_config(after, "c")


def test_requests_of_another_incarnation_are_passed_over(remote: MemoryStore, clock: ManualClock) -> None:
    log = opened(remote, clock)
    posted = Posted(publisher="P" * 22, sequence=0, base=-1, nonce="N" * 22)

    def found(of: str, by: str) -> bool:
        writes = RequestBox(remote, clock, log.cluster_id, of)
        name = writes.post(posted, writes.encode(posted, b"{}"))
        reads = RequestBox(remote, clock, log.cluster_id, by)
        (one,) = reads.read(reads.waiting(log.image))
        remote.delete(name)
        return one is not None

    assert found("", "")
    assert found(LIFE, LIFE)
    assert not found("", LIFE)
    assert not found(LIFE, "")
    assert not found("S" * 22, LIFE)


def test_the_action_is_read_back(remote: MemoryStore, clock: ManualClock) -> None:
    log = opened(remote, clock)
    log.publish(lambda _: [SetConfigs(configs={"a": "b"})])
    restore(log, LIFE)
    assert opened(remote, clock).image == log.image
    assert isinstance(plan_restore_root(log.image, incarnation_id="S" * 22, now_ms=NOW_MS), RestoreRoot)
