"""Joining again: fenced meanwhile, unnoticed, and beside what is left of the registration before."""

import asyncio
from typing import Any

import pytest

from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.errors import StorageError
from sparklog.metadata import new_id, plan_fence_broker, plan_join_broker
from sparklog.metadata.documents.properties import HEARTBEATS
from sparklog.storage import IndefinitePutError, MemoryStore
from sparklog_server.cluster import membership as joining
from sparklog_server.cluster.liveness import Heartbeat
from sparklog_server.cluster.membership import Registration
from tests.server.publish.surroundings import Surroundings
from tests.support.broker_process import until
from tests.support.roots import opened

NODE = 7


def fence(log: SparkLog) -> None:
    """By a controller that had no heartbeat of this registration."""
    action = plan_fence_broker(log.image, NODE, log.image.brokers[NODE].broker_epoch)
    assert action is not None
    log.metadata.publish(lambda _: [action])


@pytest.mark.timeout(60)
@pytest.mark.parametrize("fenced_join", [1, 2], ids=["first", "again"])
def test_who_is_fenced_while_it_joins_notices_without_another_commit(
    fenced_join: int, store: MemoryStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image that says so is shown before the registration is known that it ends."""
    log = opened(store, clock)
    surroundings, joins = Surroundings(log), list[Registration]()
    root, membership, join = surroundings.root, surroundings.membership, joining.join

    async def join_and_be_fenced(*arguments: Any, **named: Any) -> Registration:
        joins.append(await join(*arguments, **named))
        if len(joins) == fenced_join:
            fence(log)
            root.show()
        return joins[-1]

    async def main() -> None:
        resumed = asyncio.Event()
        membership.on_resumed(resumed.set)
        monkeypatch.setattr("sparklog_server.cluster.membership.join", join_and_be_fenced)
        await membership.start()
        if fenced_join == 2:
            fence(log)
            root.show()
        await resumed.wait()
        assert membership.is_registered
        assert membership.current() is joins[fenced_join]
        await membership.stop()

    asyncio.run(main())
    root.close()
    log.close()


class Refusing:
    """A store that answers no put of a commit any more, until `is_over`."""

    def __init__(self, store: MemoryStore, *, is_done: bool) -> None:
        """`is_done`: the first one is done nevertheless, and then nothing is answered."""
        self.beats = 0
        self._store = store
        self._is_done, self._has_put = is_done, False
        store.hook = self._refuse

    def is_over(self) -> None:
        self._store.hook = self._count

    def _count(self, operation: str, name: str) -> None:
        self.beats += operation == "put_hint" and name.startswith(HEARTBEATS)

    def _refuse(self, operation: str, name: str) -> None:
        self._count(operation, name)
        if name.startswith(HEARTBEATS):
            return
        if operation == ("put_if_absent:done" if self._is_done else "put_if_absent"):
            self._has_put = True
            raise IndefinitePutError("PUT_INDEFINITE", "no answer", fix="repeat")
        if self._is_done and self._has_put:
            raise StorageError("STORE_UNAVAILABLE", "no answer", fix="wait")


async def fenced(surroundings: Surroundings) -> None:
    """The broker has joined, is fenced, and is about to notice."""
    await surroundings.membership.start()
    fence(surroundings.root.log)


QUICKLY = {"broker_heartbeat_interval_ms": "20", "broker_session_timeout_ms": "200"}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("is_done", [True, False], ids=["at once", "with the next try"])
def test_a_join_of_its_own_that_arrives_unnoticed_is_not_taken_for_another_process(
    is_done: bool, store: MemoryStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. a try to join again is not answered, and given up; 2. its commit is there, or comes to be there with
    the next publish; 3. the next try finds the node id taken.
    """
    surroundings, join, tries = Surroundings(opened(store, clock), **QUICKLY), joining.join, list[str]()
    membership, refusing = surroundings.membership, list[Refusing]()

    async def join_or_be_refused(*arguments: Any, **named: Any) -> Registration:
        try:
            return await join(*arguments, **named)
        except StorageError as error:
            tries.append(error.code)
            refusing[0].is_over()
            raise

    async def main() -> None:
        resumed = asyncio.Event()
        membership.on_resumed(resumed.set)
        await fenced(surroundings)
        before = membership.current()
        refusing.append(Refusing(store, is_done=is_done))
        monkeypatch.setattr("sparklog_server.cluster.membership.join", join_or_be_refused)
        surroundings.root.show()
        await asyncio.wait_for(resumed.wait(), 10)
        assert tries == ["PUBLISH_UNRESOLVED"]
        assert membership.current().broker_epoch == before.broker_epoch + 2  # the try's
        assert membership.is_in_charge
        await membership.stop()

    asyncio.run(main())
    surroundings.root.close()


@pytest.mark.timeout(20)
def test_who_stops_while_it_joins_again_leaves_no_registration(
    store: MemoryStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The try arrives with the next publish, which is the end's: nobody would lead what it gets."""
    surroundings, join = Surroundings(opened(store, clock), **QUICKLY), joining.join
    membership = surroundings.membership

    async def main() -> None:
        has_tried = asyncio.Event()

        async def join_in_vain(*arguments: Any, **named: Any) -> Registration:
            try:
                return await join(*arguments, **named)
            finally:
                has_tried.set()

        await fenced(surroundings)
        before = membership.current()
        refusing = Refusing(store, is_done=False)
        monkeypatch.setattr("sparklog_server.cluster.membership.join", join_in_vain)
        surroundings.root.show()
        await asyncio.wait_for(has_tried.wait(), 10)
        refusing.is_over()
        await membership.stop()
        broker = surroundings.root.log.refresh(force=True).brokers[NODE]
        assert broker.broker_epoch > before.broker_epoch, "the try's"
        assert broker.is_fenced

    asyncio.run(main())
    surroundings.root.close()


@pytest.mark.timeout(20)
def test_who_stops_leaves_a_registration_of_another_process_alone(
    store: MemoryStore, clock: ManualClock
) -> None:
    surroundings = Surroundings(opened(store, clock), **QUICKLY)
    root, membership = surroundings.root, surroundings.membership

    async def main() -> None:
        await fenced(surroundings)
        other = Registration.join(root.metadata, NODE)
        root.show()
        await membership.stop()
        broker = root.log.refresh(force=True).brokers[NODE]
        assert (broker.broker_epoch, broker.is_fenced) == (other.broker_epoch, False)

    asyncio.run(main())
    root.close()


@pytest.mark.timeout(20)
def test_who_is_fenced_gives_no_signs_of_life_until_it_has_joined_again(
    store: MemoryStore, clock: ManualClock
) -> None:
    """Another process may have the node id by then: they would hide its own."""
    surroundings = Surroundings(opened(store, clock), **QUICKLY)
    membership = surroundings.membership

    async def main() -> None:
        resumed = asyncio.Event()
        membership.on_resumed(resumed.set)
        await fenced(surroundings)
        refusing = Refusing(store, is_done=False)
        surroundings.root.show()
        await asyncio.sleep(0.1)
        before = refusing.beats
        await asyncio.sleep(0.2)
        assert refusing.beats == before
        refusing.is_over()
        await asyncio.wait_for(resumed.wait(), 10)
        await asyncio.to_thread(until, lambda: refusing.beats > before)
        await membership.stop()

    asyncio.run(main())
    surroundings.root.close()


@pytest.mark.timeout(20)
def test_signs_of_life_of_an_older_registration_are_none_of_the_one_that_is_watched(
    store: MemoryStore, clock: ManualClock
) -> None:
    """Writes of the process before may land late, any number of them."""
    log = opened(store, clock)
    old, incarnation_id = Heartbeat(store, NODE, 0), new_id()
    log.create_topic("orders", 1)  # so that the epoch, which is the commit's number, is above 0
    log.metadata.publish(lambda image: [plan_join_broker(image, NODE, incarnation_id=incarnation_id)])
    dead = log.image.brokers[NODE]
    # Whoever lives would be refused at once, so that what counts is whether it is taken to live.
    surroundings = Surroundings(log, **QUICKLY, initial_broker_registration_timeout_ms="0")

    async def land_late() -> None:
        while True:
            old.beat()
            clock.advance_ms(20)
            await asyncio.sleep(0.005)

    async def main() -> None:
        landing = asyncio.create_task(land_late())
        await surroundings.membership.start()
        landing.cancel()
        assert surroundings.membership.current().broker_epoch > dead.broker_epoch
        await surroundings.membership.stop()

    asyncio.run(main())
    surroundings.root.close()
