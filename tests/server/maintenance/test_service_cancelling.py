"""A round of maintenance that a broker cancels, since something else is to be done."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sparklog.client import round_process
from sparklog.client.round_process import RoundAnswer, RoundRequest, encode_request
from sparklog.maintenance.choose import Dirtiness
from sparklog_server.maintenance import service
from sparklog_server.metrics import Metrics
from sparklog_server.settings.config import ServerConfig
from tests.client.test_round_process_pace import answer
from tests.server.maintenance.test_service import SOON, Membership, Root, maintained
from tests.support.told import Told


class Urgent(Root):
    """Has nothing else to do until somebody says so."""

    def __init__(self) -> None:
        super().__init__(lambda: (("optimize",), Dirtiness()))
        self.is_urgent = False

    async def run(self, function: Callable[..., Any], *arguments: object) -> Any:
        if function.__name__ == "_rewrites_due":
            return ("compact", "optimize") if self.is_urgent else ()
        return await super().run(function, *arguments)


async def _more_looks(membership: Membership, count: int) -> None:
    """Wait until the service has asked so often more whether maintenance is its own."""
    looked = membership.asked
    async with asyncio.timeout(30):
        while membership.asked < looked + count:  # noqa: ASYNC110 - there is no event for what tests look at
            await asyncio.sleep(0.001)


def test_what_groups_wait_for_breaks_off_what_can_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is done at once, at the broker's own priority; if in vain, not again for a while."""
    requests: list[RoundRequest] = []
    begun, again = threading.Event(), threading.Event()

    def noted(request: RoundRequest) -> bytes:
        requests.append(request)
        return encode_request(request)

    def command(*, is_urgent: bool = False) -> list[str]:
        """One that can wait goes on until it is told to end; an urgent one finds nothing to do."""
        kinds.append(is_urgent)
        (again if len(kinds) == 3 else begun).set()
        return ["true"] if is_urgent else ["cat"]

    kinds: list[bool] = []
    monkeypatch.setattr(round_process, "encode_request", noted)
    monkeypatch.setattr(round_process, "command", command)
    monkeypatch.setattr(service, "urgent_topics", lambda _image: ("__consumer_offsets",))

    membership = Membership()

    async def run() -> None:
        root = Urgent()
        maintenance = maintained(lambda: None, membership, root=root)
        await maintenance.start()
        assert await asyncio.to_thread(begun.wait, 30)
        root.is_urgent = True
        assert await asyncio.to_thread(again.wait, 30)
        await _more_looks(membership, 10)
        await maintenance.stop()

    asyncio.run(run())
    assert kinds == [False, True, False]
    assert [(one.steps, one.terms.topics) for one in requests[:2]] == [
        (("optimize",), None),
        (("compact", "optimize"), ("__consumer_offsets",)),
    ]


def test_what_can_wait_has_its_turn_where_something_is_always_urgent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Groups that commit all the time would keep retention from ever running, and fill the disk."""
    kinds: list[bool] = []
    enough = threading.Event()

    def command(*, is_urgent: bool) -> list[str]:
        kinds.append(is_urgent)
        if len(kinds) == 6:
            enough.set()
        return ["true"]

    def something_done(_data: bytes, _exit_code: int) -> RoundAnswer:
        return answer("done")

    monkeypatch.setattr(round_process, "command", command)
    monkeypatch.setattr(round_process, "decode_answer", something_done)
    monkeypatch.setattr(service, "urgent_topics", lambda _image: ("__consumer_offsets",))

    async def run() -> None:
        root = Urgent()
        root.is_urgent = True
        maintenance = maintained(lambda: None, Membership(), root=root)
        await maintenance.start()
        assert await asyncio.to_thread(enough.wait, 30)
        await maintenance.stop()

    asyncio.run(run())
    assert kinds[:6] == [True, False] * 3


def test_what_can_wait_is_another_brokers_once_that_is_in_charge(monkeypatch: pytest.MonkeyPatch) -> None:
    """While an urgent round ran, which may take minutes."""
    kinds: list[bool] = []
    leads = True

    def command(*, is_urgent: bool) -> list[str]:
        nonlocal leads
        kinds.append(is_urgent)
        leads = False
        return ["true"]

    metrics, membership = Metrics(), Membership()
    monkeypatch.setattr(round_process, "command", command)
    monkeypatch.setattr(service, "urgent_topics", lambda _image: ("__consumer_offsets",))

    async def run() -> None:
        root = Urgent()
        root.is_urgent = True
        maintenance = maintained(lambda: None, membership, metrics, root=root, is_controller=lambda: leads)
        await maintenance.start()
        async with asyncio.timeout(30):
            while not metrics.maintenance.rounds:  # noqa: ASYNC110 - there is no event for what tests look at
                await asyncio.sleep(0.001)
        await _more_looks(membership, 5)
        await maintenance.stop()

    asyncio.run(run())
    assert kinds == [True]


def test_a_round_breaks_off_once_another_broker_is_to_do_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would keep that one's rounds from this machine."""
    metrics, begun = Metrics(), threading.Event()
    leads = True

    def command(*, is_urgent: bool) -> list[str]:
        assert not is_urgent
        begun.set()
        return ["cat"]  # goes on until it is told to end

    monkeypatch.setattr(round_process, "command", command)

    async def run() -> None:
        nonlocal leads
        maintenance = maintained(
            lambda: (("optimize",), Dirtiness()), Membership(), metrics, is_controller=lambda: leads
        )
        await maintenance.start()
        assert await asyncio.to_thread(begun.wait, 30)
        leads = False
        async with asyncio.timeout(30):
            while not metrics.maintenance.rounds:  # noqa: ASYNC110 - there is no event for what tests look at
                await asyncio.sleep(0.001)
        await maintenance.stop()

    asyncio.run(run())
    assert (metrics.maintenance.rounds, metrics.maintenance.failed_rounds) == (1, 0)


def test_a_round_that_was_begun_with_other_settings_is_broken_off(
    monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    """At a byte a second it would go on for years, and the rate that puts it right would never count."""
    asked: list[int | None] = []
    metrics = Metrics()

    def noted(request: RoundRequest) -> bytes:
        asked.append(request.budget.bytes_per_second)
        return encode_request(request)

    monkeypatch.setattr(round_process, "encode_request", noted)
    monkeypatch.setattr(round_process, "command", lambda *, is_urgent: ["cat"])  # until its input ends

    def of_rate(rate: int) -> Any:
        return ServerConfig.parse({**SOON, "log.cleaner.io.max.bytes.per.second": str(rate)}).maintenance

    async def run() -> None:
        maintenance = maintained(lambda: (("merge",), Dirtiness()), Membership(), metrics)
        maintenance.change(of_rate(1))
        await maintenance.start()
        async with asyncio.timeout(30):
            while not asked:  # noqa: ASYNC110 - there is no event for what tests look at
                await asyncio.sleep(0.001)
            maintenance.change(replace(of_rate(1), sparklog_maintenance_delay_max_ms=7))
            await asyncio.sleep(0.01)
            assert asked == [1], "of no concern to a round"
            maintenance.change(of_rate(1_000_000))
            while len(asked) < 2:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.001)
        await maintenance.stop()

    asyncio.run(run())
    assert asked == [1, 1_000_000]
    assert metrics.maintenance.failed_rounds == 0
    assert [one for one in told("sparklog_server") if "without a report" in one] == []
