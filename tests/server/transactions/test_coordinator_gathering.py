"""Which operations share a commit, and what becomes of the others when one is refused."""

import asyncio
import gc
from typing import Any

import pytest

from sparklog.errors import InvalidRequestError, RetriableError
from sparklog.metadata import BeginProducer, Image, plan_begin_producer
from sparklog_server.transactions import coordinator
from sparklog_server.transactions.coordinator import Decision, Gathering
from tests.server.transactions.conftest import Root


def initialising(name: str) -> Any:
    def decide(image: Image) -> Decision[int]:
        begun = plan_begin_producer(image, name, timeout_ms=1000, now_ms=0)
        return begun.actions, begun.producer_id

    return decide


def refusing(_image: Image) -> Decision[None]:
    raise InvalidRequestError("TRANSACTION_STATE", "no", fix="never")


async def together(gathered: Gathering, *operations: tuple[str, Any]) -> list[Any]:
    return await asyncio.gather(
        *(gathered.submit(name, decide) for name, decide in operations), return_exceptions=True
    )


def test_operations_of_one_moment_share_a_commit_and_no_producer_id(root: Root) -> None:
    names = [f"app-{number}" for number in range(20)]
    found = asyncio.run(together(Gathering(root.commits), *((name, initialising(name)) for name in names)))
    assert root.commits.count == 1
    assert len(set(found)) == 20
    assert {one.producer_id for one in root.log.image.transactions.values()} == set(found)


def test_those_of_one_id_are_in_commits_of_their_own_in_order(root: Root) -> None:
    order: list[int] = []

    def counting(number: int) -> Any:
        def decide(image: Image) -> Decision[int]:
            order.append(number)
            known = image.transactions.get("app")
            return initialising("app")(image)[0], -1 if known is None else known.producer_epoch

        return decide

    operations = [("app", counting(number)) for number in range(3)]
    assert asyncio.run(together(Gathering(root.commits), *operations, ("b", initialising("b")))) == [
        -1,
        0,
        1,
        1,
    ]
    assert root.commits.count == 3  # b is in the first
    assert sorted(order) == order


def test_one_that_is_refused_harms_no_other(root: Root) -> None:
    one, refused, two = asyncio.run(
        together(Gathering(root.commits), ("a", initialising("a")), ("x", refusing), ("b", initialising("b")))
    )
    assert (one, two) == (0, 1)
    assert isinstance(refused, InvalidRequestError)
    assert root.commits.count == 1


def test_what_does_not_apply_together_is_tried_alone(root: Root) -> None:
    """A plan that promises what does not hold: it fails by itself."""
    root.log.metadata.publish(lambda image: initialising("a")(image)[0])
    again = BeginProducer(transactional_id="a", producer_id=0, producer_epoch=7, timeout_ms=1, time_ms=0)
    wrong, right = asyncio.run(
        together(Gathering(root.commits), ("a", lambda _: ([again], None)), ("b", initialising("b")))
    )
    assert isinstance(wrong, InvalidRequestError)
    assert right == 1


def test_a_failure_of_the_commit_is_everybodys(root: Root) -> None:
    root.commits.failures.append(RetriableError("PUBLISH_CONTENDED", "busy", fix="again"))
    operations = [(name, initialising(name)) for name in ("a", "b")]
    gathered = Gathering(root.commits)
    assert [type(one) for one in asyncio.run(together(gathered, *operations))] == [RetriableError] * 2
    assert asyncio.run(together(Gathering(root.commits), *operations)) == [0, 1]


def test_a_failure_of_the_commit_leaves_nothing_without_a_collector(root: Root) -> None:
    gc.collect()
    of_others = [one for one in gc.get_objects() if isinstance(one, RetriableError)]
    gc.disable()
    try:
        for _ in range(5):
            root.commits.failures.append(RetriableError("PUBLISH_CONTENDED", "busy", fix="again"))
            gathered = Gathering(root.commits)
            asyncio.run(together(gathered, ("a", initialising("a")), ("b", initialising("b"))))
        left = [one for one in gc.get_objects() if isinstance(one, RetriableError)]
    finally:
        gc.enable()
    assert len(left) <= len(of_others)


def test_what_is_heavy_is_in_a_commit_of_its_own(root: Root) -> None:
    async def work() -> None:
        gathered = Gathering(root.commits)
        heavy = gathered.submit("a", initialising("a"), weight=coordinator.MOST_WEIGHT)
        await asyncio.gather(heavy, gathered.submit("b", initialising("b")))

    asyncio.run(work())
    assert root.commits.count == 2


def test_too_many_that_wait_are_refused(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "MOST_WAITING", 2)
    operations = [(name, initialising(name)) for name in ("a", "b", "c")]
    *made, refused = asyncio.run(together(Gathering(root.commits), *operations))
    assert made == [0, 1]
    assert isinstance(refused, RetriableError)
    assert refused.code == "PUBLISH_BACKLOG_FULL"
