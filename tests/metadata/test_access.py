"""ACLs and quotas in the metadata log: planned, applied, refused, and kept by snapshots."""

import pytest

from sparklog.errors import InvalidRequestError, UnsupportedVersionError
from sparklog.metadata import (
    MAX_ACLS,
    MAX_QUOTAS,
    Acl,
    Action,
    ActionRefusedError,
    ChangeAcls,
    Image,
    QuotaEntity,
    SetQuotas,
    empty_image,
    plan_change_acls,
    plan_set_quotas,
    validate_acl,
)
from sparklog.metadata.model import access, settings
from sparklog.metadata.model.actions import apply_actions
from sparklog.storage import MemoryStore
from tests.metadata.opened_logs import opened

ACL = Acl("TOPIC", "orders", "LITERAL", "User:alice", "*", "READ", "ALLOW")
ALICE: QuotaEntity = (("user", "alice"),)


def applied(image: Image, *actions: Action) -> Image:
    return apply_actions(image, actions, commit=image.commit + 1, commit_uuid="U" * 22)


@pytest.fixture
def image() -> Image:
    return empty_image("C" * 22)


def test_acls_are_added_and_removed_once(image: Image) -> None:
    other = ACL._replace(host="10.0.0.1")
    after = applied(image, *plan_change_acls(image, added=[ACL, other, ACL]))
    assert after.acls == {ACL, other}
    assert after.reader_features == after.writer_features == {"acls"}
    assert plan_change_acls(after, added=[ACL]) == []
    assert plan_change_acls(image, removed=[ACL]) == []
    (action,) = plan_change_acls(after, removed=[ACL, ACL])
    assert applied(after, action).acls == {other}


@pytest.mark.parametrize(
    "action",
    [
        ChangeAcls(added=(ACL, ACL)),
        ChangeAcls(added=(ACL,), removed=(ACL,)),
        ChangeAcls(removed=(ACL,)),
        ChangeAcls(added=(ACL._replace(operation="ANY"),)),
    ],
)
def test_refused_acls(image: Image, action: ChangeAcls) -> None:
    with pytest.raises(ActionRefusedError):
        applied(image, action)


def test_an_acl_that_exists_is_not_added(image: Image) -> None:
    with pytest.raises(ActionRefusedError, match="exists"):
        applied(applied(image, ChangeAcls(added=(ACL,))), ChangeAcls(added=(ACL,)))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"resource_type": "ANY"}, "Invalid resourceType ANY"),
        ({"pattern_type": "MATCH"}, "Invalid patternType MATCH"),
        ({"operation": "UNKNOWN"}, "Invalid operation UNKNOWN"),
        ({"permission": "ANY"}, "Invalid permissionType ANY"),
        ({"name": ""}, "Resource name should not be empty"),
        ({"host": ""}, "Host should not be empty"),
        ({"principal": "alice"}, "no colon is present"),
        ({"principal": "User:"}, "Could not parse principal"),
        ({"principal": "User:" + "x" * 1000}, "1005 characters, expected at most 1000"),
        ({"resource_type": "CLUSTER"}, "kafka-cluster"),
    ],
)
def test_illegal_acls(changed: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        validate_acl(ACL._replace(**changed))


def test_acls_are_bounded(image: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_ACLS == 20_000
    monkeypatch.setattr(access, "MAX_ACLS", 2)
    acls = [ACL._replace(name=f"t{number}") for number in range(3)]
    with pytest.raises(InvalidRequestError, match="expected at most 2"):
        plan_change_acls(image, added=acls)
    with pytest.raises(ActionRefusedError, match="3 ACLs, expected at most 2"):
        applied(image, ChangeAcls(added=tuple(acls)))
    full = applied(image, ChangeAcls(added=tuple(acls[:2])))
    assert len(applied(full, *plan_change_acls(full, added=acls[2:], removed=acls[:1])).acls) == 2


def test_quotas_are_set_and_removed(image: Image) -> None:
    after = applied(
        image, *plan_set_quotas(image, {ALICE: {"producer_byte_rate": 10, "request_percentage": 0.5}})
    )
    assert after.quotas == {ALICE: {"producer_byte_rate": 10, "request_percentage": 0.5}}
    assert after.reader_features == after.writer_features == {"quotas"}
    assert plan_set_quotas(after, {ALICE: {"producer_byte_rate": 10, "consumer_byte_rate": None}}) == []
    (action,) = plan_set_quotas(after, {ALICE: {"producer_byte_rate": None}})
    after = applied(after, action)
    assert after.quotas == {ALICE: {"request_percentage": 0.5}}
    assert applied(after, SetQuotas(entity=ALICE, quotas={"request_percentage": None})).quotas == {}


@pytest.mark.parametrize(
    ("entity", "quotas", "message"),
    [
        ((), {}, "Invalid empty client quota entity"),
        ((("group", "x"),), {}, "Unhandled client quota entity type: group"),
        ((("user", "a"), ("client-id", "b")), {}, "order"),
        ((("user", "a"), ("user", "b")), {}, "twice"),
        ((("client-id", "a"), ("ip", "b")), {}, "Invalid quota entity combination"),
        ((("user", ""),), {}, "a name is empty"),
        (ALICE, {"connection_creation_rate": 1}, "Invalid configuration key"),
        ((("ip", None),), {"producer_byte_rate": 1}, "Invalid configuration key"),
        (ALICE, {"producer_byte_rate": 0}, "must be greater than 0"),
        (ALICE, {"request_percentage": float("nan")}, "must be greater than 0"),
        (ALICE, {"request_percentage": float("inf")}, "must be greater than 0"),
        (ALICE, {"producer_byte_rate": 1.5}, "must be a whole number"),
        (ALICE, {"producer_byte_rate": 1e30}, "must be a whole number"),
    ],
)
def test_illegal_quotas(
    image: Image, entity: QuotaEntity, quotas: dict[str, float | None], message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        plan_set_quotas(image, {entity: quotas})
    with pytest.raises(ActionRefusedError, match=message):
        applied(image, SetQuotas(entity=entity, quotas=quotas))


def test_quotas_are_bounded(image: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_QUOTAS == 10_000
    monkeypatch.setattr(access, "MAX_QUOTAS", 1)
    full = applied(image, SetQuotas(entity=ALICE, quotas={"producer_byte_rate": 1.0}))
    bob: QuotaEntity = (("user", "bob"),)
    with pytest.raises(InvalidRequestError, match="expected at most 1"):
        plan_set_quotas(full, {bob: {"producer_byte_rate": 1.0}})
    with pytest.raises(ActionRefusedError, match="expected at most 1"):
        applied(full, SetQuotas(entity=bob, quotas={"producer_byte_rate": 1.0}))
    assert plan_set_quotas(full, {ALICE: {"producer_byte_rate": 2.0}})


def test_a_snapshot_has_them() -> None:
    store = MemoryStore()
    log = opened(store)
    log.publish(lambda image: plan_change_acls(image, added=[ACL]))
    log.publish(
        lambda image: plan_set_quotas(
            image, {(("client-id", None), ("user", "a")): {"producer_byte_rate": 5}}
        )
    )
    log.write_snapshot()
    found = opened(store)
    assert found.image.replayed.snapshot == log.image.commit
    assert found.image.acls == log.image.acls == {ACL}
    assert (
        found.image.quotas
        == log.image.quotas
        == {(("client-id", None), ("user", "a")): {"producer_byte_rate": 5}}
    )


def test_software_that_does_not_know_acls_does_not_open_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    opened(store).publish(lambda image: plan_change_acls(image, added=[ACL]))
    monkeypatch.setattr(settings, "READER_FEATURES", frozenset())
    with pytest.raises(UnsupportedVersionError, match="needs the features acls"):
        opened(store)
