"""Faults of ours while a state log is loaded."""

from typing import NoReturn

import pytest

from sparklog_server.coordination.internal_topic import LogStatus
from tests.server.coordination.toy import Entry, Ledger, Toy, Toys


@pytest.mark.parametrize("at", ["apply", "on_loading"])
def test_a_fault_in_loading_is_no_loading_for_ever(
    at: str, toys: Toys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks while it loads asks again in place, and nobody would be told what is wrong."""

    def fail(*_: object) -> NoReturn:
        raise AssertionError

    async def fill(toy: Toy) -> None:
        await toy.append(Entry("a0", 1))

    async def scenario(toy: Toy) -> None:
        if at == "on_loading":
            monkeypatch.setattr(toy, "load_more", fail)
        await toy.open()
        assert [log.status for log in toy.shards] == [LogStatus.FAILED, LogStatus.READY, LogStatus.READY]

    toys.run(fill)
    if at == "apply":
        monkeypatch.setattr(Ledger, "apply", fail)
    toys.run(scenario, opened=False)
