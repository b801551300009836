"""Quotas: Kafka's order of entities, its arithmetic, and what they hold, by a clock of the test."""

import itertools

import msgspec
import pytest

from sparklog.metadata import CLIENT_ID, IP, USER, Image, QuotaEntity, empty_image, plan_set_quotas
from sparklog.metadata.model.actions import apply_actions
from sparklog_server.protocol.apis import RequestContext
from sparklog_server.security import quotas as module
from sparklog_server.security.quotas import CONNECTIONS, FETCHED, MUTATIONS, PRODUCED, REQUESTS, Quotas
from sparklog_server.settings.access import QuotaSettings


class Surroundings:
    """Quotas over an image, and a clock in milliseconds."""

    def __init__(self, **by_entity: float) -> None:
        self.now_ms = 0.0
        self.image = empty_image("C" * 22)
        self.quotas = Quotas(QuotaSettings(), lambda: self.image, lambda: self.now_ms)

    def set(self, entity: QuotaEntity, **values: float | None) -> None:
        image: Image = self.image
        actions = plan_set_quotas(image, {entity: values})
        self.image = apply_actions(image, actions, commit=image.commit + 1, commit_uuid="U" * 22)


def context(user: str = "alice", client_id: str = "c") -> RequestContext:
    fields = dict.fromkeys(RequestContext.__struct_fields__)
    return RequestContext(**(fields | {"principal": f"User:{user}", "client_id": client_id}))  # type: ignore[arg-type]


ENTITIES: list[QuotaEntity] = [
    ((CLIENT_ID, "c"), (USER, "alice")),
    ((CLIENT_ID, None), (USER, "alice")),
    ((USER, "alice"),),
    ((CLIENT_ID, "c"), (USER, None)),
    ((CLIENT_ID, None), (USER, None)),
    ((USER, None),),
    ((CLIENT_ID, "c"),),
    ((CLIENT_ID, None),),
]


def test_the_most_specific_entity_counts() -> None:
    """In Kafka's order: without the entities before it, each is the one."""
    at = Surroundings()
    for number, entity in enumerate(ENTITIES):
        at.set(entity, producer_byte_rate=float(number + 1))
    for number, entity in enumerate(ENTITIES):
        limit = at.quotas.limit(PRODUCED, context())
        assert limit is not None
        assert limit.value == number + 1
        at.set(entity, producer_byte_rate=None)
    assert at.quotas.limit(PRODUCED, context()) is None


def test_an_entity_counts_for_the_quotas_that_it_has() -> None:
    at = Surroundings()
    at.set(ENTITIES[0], request_percentage=50.0)
    at.set(ENTITIES[7], producer_byte_rate=7.0)
    limit = at.quotas.limit(PRODUCED, context())
    assert limit is not None
    assert limit.value == 7.0
    assert at.quotas.limit(FETCHED, context()) is None


@pytest.mark.parametrize(
    ("entity", "is_shared_by_clients", "is_shared_by_users"),
    [
        (((USER, "alice"),), True, False),
        (((USER, None),), True, False),
        (((CLIENT_ID, None),), False, True),
        (((CLIENT_ID, None), (USER, None)), False, False),
    ],
)
def test_who_shares_a_quota(
    entity: QuotaEntity, is_shared_by_clients: bool, is_shared_by_users: bool
) -> None:
    at = Surroundings()
    at.set(entity, producer_byte_rate=10.0)
    assert at.quotas.count(PRODUCED, context(), 1_000) > 0
    assert (at.quotas.count(PRODUCED, context(client_id="other"), 1) > 0) is is_shared_by_clients
    if entity != ENTITIES[2]:
        assert (at.quotas.count(PRODUCED, context("bob"), 1) > 0) is is_shared_by_users


def test_the_wait_is_until_the_mean_is_legal() -> None:
    at = Surroundings()
    at.set(ENTITIES[2], producer_byte_rate=100.0)
    assert at.quotas.count(PRODUCED, context(), 1_000) == 0  # of ten seconds, at first
    assert at.quotas.count(PRODUCED, context(), 500) == pytest.approx(5_000)
    assert at.quotas.count(PRODUCED, context("bob"), 10**9) == 0


@pytest.mark.parametrize("clients", [1, 50])
def test_quotas_hold_within_a_tenth_over_a_minute(clients: int) -> None:
    """Clients that send as fast as they may, and wait as they are told."""
    at = Surroundings()
    at.set(((USER, "alice"),), producer_byte_rate=1_000_000.0)
    free_at = [0.0] * clients
    sent = 0
    while at.now_ms < 70_000:
        for number in range(clients):
            if free_at[number] <= at.now_ms:
                wait_ms = at.quotas.count(PRODUCED, context(client_id=f"c{number}"), 100_000)
                free_at[number] = at.now_ms + max(wait_ms, 5)
                sent += 100_000 if at.now_ms >= 10_000 else 0  # the first burst may use ten seconds
        at.now_ms += 5
    assert sent / 60 == pytest.approx(1_000_000, rel=0.1)


def test_request_time_throttles_for_one_window_at_most() -> None:
    at = Surroundings()
    at.set(ENTITIES[7], request_percentage=1.0)
    assert at.quotas.count(REQUESTS, context(), 10_000) == 1_000
    at.now_ms = 9_500
    assert at.quotas.count(REQUESTS, context(), 0) == 500  # no longer than it takes to fill the windows


def test_what_was_not_sent_does_not_count() -> None:
    at = Surroundings()
    at.set(ENTITIES[7], consumer_byte_rate=100.0)
    assert at.quotas.most_in_windows(FETCHED, context()) == 1_000
    assert at.quotas.count(FETCHED, context(), 5_000) > 0
    at.quotas.take_back(FETCHED, context(), 5_000)
    assert at.quotas.count(FETCHED, context(), 10) == 0


def test_mutations_are_refused_after_a_burst() -> None:
    at = Surroundings()
    at.set(ENTITIES[2], controller_mutation_rate=1.0)
    mutations = at.quotas.mutations(context())
    assert mutations.try_take(15, is_strict=True)  # 11 may be used in a burst, and the last overdraws
    assert not mutations.try_take(1, is_strict=True)
    assert mutations.throttle_ms == pytest.approx(4_000)
    assert at.quotas.mutations(context()).try_take(1, is_strict=False)
    at.now_ms = 5_000
    again = at.quotas.mutations(context())
    assert again.try_take(1, is_strict=True)
    assert at.quotas.mutations(context("bob")).try_take(10**6, is_strict=True)


def test_connections_of_an_address() -> None:
    at = Surroundings()
    assert at.quotas.may_connect("10.0.0.1")
    at.set(((IP, None),), connection_creation_rate=1.0)
    at.set(((IP, "10.0.0.1"),), connection_creation_rate=2.0)
    assert [at.quotas.may_connect("10.0.0.1") for _ in range(30)].count(True) == 20
    assert [at.quotas.may_connect("10.0.0.2") for _ in range(30)].count(True) == 10
    at.now_ms = 60_000
    assert at.quotas.may_connect("10.0.0.1")
    assert CONNECTIONS == "connection_creation_rate"
    assert MUTATIONS == "controller_mutation_rate"


def test_invented_names_share_a_meter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise names would cost memory; or a client over its quota would be forgotten."""
    monkeypatch.setattr(module, "MAX_METERS", 10)
    at = Surroundings()
    at.set(ENTITIES[7], producer_byte_rate=10.0)
    assert at.quotas.count(PRODUCED, context(client_id="first"), 1_000) > 0
    waits = [at.quotas.count(PRODUCED, context(client_id=f"n{number}"), 90) for number in range(1_000)]
    assert at.quotas.meter_count == 11
    assert waits[8] == 0
    assert waits[-1] > 60_000
    assert at.quotas.count(PRODUCED, context(client_id="first"), 1) > 0
    at.now_ms = 20_000  # they send nothing any more
    for _ in range(5):
        at.quotas.count(PRODUCED, context(client_id="late"), 1)
    assert at.quotas.meter_count == 3  # the first, which still has to wait, and the others
    assert at.quotas.count(PRODUCED, context(client_id="first"), 1) > 0


def test_without_quotas_nothing_is_kept() -> None:
    at = Surroundings()
    for number in itertools.islice(itertools.count(), 100):
        assert at.quotas.count(PRODUCED, context(client_id=f"n{number}"), 10**9) == 0
    assert at.quotas.meter_count == 0
    assert isinstance(context(), msgspec.Struct)
