"""Requests that no publisher of ours would post: they spoil nobody's commit, and fill nobody's memory."""

from collections.abc import Sequence

import msgspec
import pytest

from sparklog.metadata import combining as others_module
from sparklog.metadata import new_id
from sparklog.metadata.documents.properties import REQUESTS
from sparklog.metadata.requests import Posted, RequestBox, Ticket
from sparklog.storage import MemoryStore
from tests.metadata.combining_publishers import REMOTE, Publisher, SleepyClock, leave_request


@pytest.fixture
def clock() -> SleepyClock:
    return SleepyClock()


@pytest.fixture
def store(clock: SleepyClock) -> MemoryStore:
    return MemoryStore("strange", clock=clock, traits=REMOTE)


def post(store: MemoryStore, clock: SleepyClock, one: Publisher, payload: bytes, *, ahead: int = 0) -> None:
    """`ahead`: so many commits that are not there yet its publisher pretends to have seen."""
    box = RequestBox(store, clock, one.log.cluster_id)
    posted = Posted(
        publisher=new_id(), sequence=0, base=one.log.refresh(force=True).commit + ahead, nonce=new_id()
    )
    box.post(posted, box.encode(posted, payload))
    clock.advance_ms(1)


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_one_of_a_commit_that_is_not_there_yet(store: MemoryStore, clock: SleepyClock, ahead: int) -> None:
    """By the drafts of what comes before it in the commit it would be in time."""
    one = Publisher(store, clock)
    one.publish("first")
    for number in range(ahead):
        leave_request(store, one.log, clock, f"before {number}", None, "never")
    post(store, clock, one, msgspec.json.encode(["strange", None, "never"]), ahead=ahead)
    one.publish("ours")
    assert set(one.log.image.configs) == {"first", "ours", *(f"before {number}" for number in range(ahead))}


@pytest.mark.parametrize(
    "payload", [b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 100_000 + b"1" + b"}" * 100_000]
)
def test_one_that_nests_too_deeply(store: MemoryStore, clock: SleepyClock, payload: bytes) -> None:
    one = Publisher(store, clock)
    post(store, clock, one, payload)
    leave_request(store, one.log, clock, "behind", None, "never")
    one.publish("ours")
    assert set(one.log.image.configs) == {"ours", "behind"}


def test_many_large_ones_are_read_a_few_at_a_time(
    store: MemoryStore, clock: SleepyClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten that do not apply, of which three fit into a commit, and one behind them that does."""
    one = Publisher(store, clock)
    one.publish("first")
    for number in range(10):
        leave_request(store, one.log, clock, f"{number}" * 1000, None, "first")
    leave_request(store, one.log, clock, "behind", None, "never")
    most = 3 * max(file.size for file in store.list(REQUESTS))
    monkeypatch.setattr(others_module, "MAX_COMBINED_BYTES", most)
    sizes: list[int] = []
    read = RequestBox.read

    def counted(box: RequestBox, tickets: Sequence[Ticket]) -> object:
        sizes.append(sum(ticket.size for ticket in tickets))
        return read(box, tickets)

    monkeypatch.setattr(RequestBox, "read", counted)
    one.publish("ours")
    assert set(one.log.image.configs) == {"first", "ours", "behind"}
    assert len(sizes) == 4
    assert max(sizes) <= most
