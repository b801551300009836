"""Several brokers over one root: who joins, who controls, who leads; and what becomes of those that stop."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

import sparklog
from sparklog.errors import FencedError, StorageError
from sparklog.metadata import plan_fence_broker
from sparklog_server.runtime.lifecycle import BrokerState
from tests.support.broker_process import until
from tests.support.brokers import MORTAL, Brokers
from tests.support.running_broker import RunningBroker

pytestmark = pytest.mark.slow

TOPIC = "orders"


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "log")


@pytest.fixture
def brokers(root: str, start_broker: Callable[..., RunningBroker]) -> Brokers:
    return Brokers(root, start_broker)


def commits(root: str) -> int:
    with sparklog.open(root) as log:
        return log.image.commit + 1


def test_the_first_broker_leads_everything_with_one_commit(brokers: Brokers, root: str) -> None:
    with sparklog.open(root) as log:
        log.create_topic(TOPIC, 3)
    before = commits(root)
    brokers.start(1)
    assert commits(root) == before + 1
    assert brokers.leaders(1, TOPIC) == [1, 1, 1]
    assert brokers[1].broker.controller.is_controller
    assert brokers[1].broker.membership.is_registered


def test_a_broker_that_is_one_of_several_commits_nothing_when_nothing_happens(
    brokers: Brokers, root: str
) -> None:
    brokers.start(1, 2)
    before = commits(root)
    beats = [Path(root) / "__cluster_metadata" / "heartbeats" / node for node in ("1", "2")]
    until(lambda: all(beat.exists() for beat in beats), what="the first heartbeats, which nobody waits for")
    seen = {beat.read_bytes() for beat in beats}
    until(lambda: not seen & {beat.read_bytes() for beat in beats})
    assert commits(root) == before


def test_topics_of_others_are_led_and_spread(brokers: Brokers) -> None:
    brokers.start(1, 2, 3)
    brokers.create(TOPIC, 6)
    brokers.until_led(3, TOPIC, {1, 2, 3})
    assert all(sorted(one.replicas) == [1, 2, 3] for one in brokers.leaderships(3, TOPIC))
    assert sorted(brokers.leaders(3, TOPIC)) == [1, 1, 2, 2, 3, 3]


def test_topics_of_the_first_broker_outlive_it_once_others_have_come(brokers: Brokers) -> None:
    brokers.start(1)
    brokers.create(TOPIC, 4)
    brokers.until_led(1, TOPIC, {1})
    brokers.start(2, 3)
    assert all(sorted(one.replicas) == [1, 2, 3] for one in brokers.leaderships(3, TOPIC))
    brokers[1].stop()
    until(lambda: set(brokers.leaders(3, TOPIC)) <= {2, 3}, what="others lead")


def test_a_list_that_leaves_a_broker_out_is_left_as_it_is(brokers: Brokers) -> None:
    brokers.start(1, 2, default_replication_factor="1")
    brokers.create(TOPIC, 4)
    brokers.until_led(1, TOPIC, {1, 2})
    brokers.start(3)
    assert {len(one.replicas) for one in brokers.leaderships(3, TOPIC)} == {1}


def test_a_broker_that_stops_hands_over_first_and_comes_back_at_once(brokers: Brokers) -> None:
    brokers.start(1, 2)
    brokers.create(TOPIC, 4)
    brokers.until_led(2, TOPIC, {1, 2})
    epochs = [one.leader_epoch for one in brokers.leaderships(2, TOPIC)]
    brokers[1].stop()
    brokers.until_fenced(2, 1)
    assert brokers.leaders(2, TOPIC) == [2] * 4
    # One epoch more for what was led by another: nobody's turn was between, as it is after a crash.
    after = [one.leader_epoch for one in brokers.leaderships(2, TOPIC)]
    assert sorted(new - old for new, old in zip(after, epochs, strict=True)) == [0, 0, 1, 1]
    brokers.until_controller(2, 2)
    brokers.start(1)
    assert not brokers.image(1).brokers[1].is_fenced


def test_the_last_broker_stops_at_once_and_leaves_no_leader(brokers: Brokers, root: str) -> None:
    brokers.start(1)
    brokers.create(TOPIC, 1)
    brokers.until_led(1, TOPIC, {1})
    brokers[1].stop()
    with sparklog.open(root) as log:
        assert log.image.brokers[1].is_fenced
        assert log.image.topics[TOPIC].partitions[0].leadership.leader == -1


def test_who_falls_silent_is_fenced_and_others_lead(
    brokers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sparklog_server.state_change")
    brokers.start(1, 2, **MORTAL)
    brokers.create(TOPIC, 4)
    brokers.until_led(2, TOPIC, {1, 2})
    old = brokers.image(1).brokers[2].broker_epoch
    brokers.silence(2)
    until(lambda: brokers.image(1).brokers[2].broker_epoch > old, what="it was fenced, and joined again")
    until(lambda: brokers[2].broker.membership.is_in_charge, what="and is in charge")
    assert brokers[2].broker.lifecycle.state is BrokerState.RUNNING
    until(lambda: "broker 2: RunningAsBroker -> Fenced" in caplog.text, what="it is told")


def test_a_controller_that_falls_silent_is_replaced(brokers: Brokers) -> None:
    brokers.start(1, 2, **MORTAL)
    brokers.create(TOPIC, 4)
    brokers.until_led(2, TOPIC, {1, 2})
    first = brokers.image(2).controller
    brokers.silence(1)
    brokers.until_controller(2, 2)
    assert brokers.image(2).controller.controller_epoch > first.controller_epoch
    until(lambda: not brokers[1].broker.controller.is_controller, what="it sees that another one is")
    until(lambda: brokers[1].broker.membership.is_in_charge, what="it has joined again")


def test_groups_are_resigned_by_a_fence_and_resumed_after_it(brokers: Brokers, root: str) -> None:
    brokers.start(1, 2)
    told: list[str] = []
    membership = brokers[2].broker.membership
    membership.on_resigned(lambda: told.append("resigned"))
    membership.on_resumed(lambda: told.append("resumed"))
    epoch = membership.current().broker_epoch
    with sparklog.open(root) as log:
        fence = plan_fence_broker(log.image, 2, epoch)
        assert fence is not None
        log.metadata.publish(lambda _: [fence])
    until(lambda: told == ["resigned", "resumed"], what="both are told, once")
    assert membership.current().broker_epoch > epoch


def test_who_cannot_join_again_for_a_fault_of_its_own_stops(
    brokers: Brokers, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Instead of living on, registered for nothing."""
    brokers.start(1, 2)

    async def broken(*_words: object, **_options: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr("sparklog_server.cluster.membership.join", broken)
    with sparklog.open(root) as log:
        fence = plan_fence_broker(log.image, 2, brokers[2].broker.membership.current().broker_epoch)
        assert fence is not None
        log.metadata.publish(lambda _: [fence])
    brokers[2].wait()
    assert isinstance(brokers[2].broker.lifecycle.failure, KeyError)
    assert brokers[1].broker.lifecycle.state is BrokerState.RUNNING


def test_a_second_broker_of_a_running_node_id_is_refused(brokers: Brokers) -> None:
    brokers.start(1, 2)
    port = brokers[1].port
    with pytest.raises(FencedError, match=rf"DUPLICATE_BROKER.*running broker 1.*127.0.0.1:{port}"):
        brokers.start(1)
    assert brokers[1].broker.membership.is_registered
    assert brokers[1].broker.lifecycle.state is BrokerState.RUNNING


def test_where_no_lock_tells_a_node_id_that_moves_is_refused_and_a_silent_one_replaced(
    start_broker: Callable[..., RunningBroker], caplog: pytest.LogCaptureFixture
) -> None:
    brokers = Brokers("memory://a-node-id-of-two", start_broker)
    brokers.start(1, **MORTAL)
    with pytest.raises(FencedError, match=r"DUPLICATE_BROKER.*registered with epoch"):
        brokers.start(1)
    first = brokers[1]
    brokers.silence(1)
    brokers.start(1, **MORTAL)
    assert "waiting for broker 1 of epoch 0 to end, or to be found dead" in caplog.text
    first.wait()  # its node id is another's now: it must not come back
    assert "BROKER_FENCED" in str(first.broker.lifecycle.failure)
    assert brokers[1].broker.membership.is_registered


def test_a_storage_that_is_away_is_no_evidence_against_anybody(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers.start(1, 2, **MORTAL)
    heartbeats = Path(brokers.root) / "__cluster_metadata" / "heartbeats"
    until(lambda: (heartbeats / "1").exists() and (heartbeats / "2").exists(), what="heartbeats")
    until(lambda: set(brokers.image(1).brokers) == {1, 2}, what="they know of each other")
    registered = brokers.image(1).brokers
    failures = 0

    def away(*_words: object, **_options: object) -> None:
        nonlocal failures
        failures += 1
        raise StorageError("STORE_UNAVAILABLE", "found no storage", fix="wait for it")

    for node_id in (1, 2):
        for name in ("put_hint", "read_many"):
            monkeypatch.setattr(brokers[node_id].broker.root.store, name, away)
    until(lambda: failures > 200, what="the session is over many times")
    monkeypatch.undo()
    seen = (heartbeats / "2").read_bytes()
    until(lambda: (heartbeats / "2").read_bytes() != seen)
    assert brokers.image(1).brokers == registered
