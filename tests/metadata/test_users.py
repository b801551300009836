"""set_scram_credential: what applies, what is refused, snapshots."""

import base64

import pytest

from sparklog.errors import InvalidRequestError
from sparklog.metadata import (
    Action,
    Image,
    RequireFeatures,
    ScramCredential,
    SetScramCredential,
    empty_image,
    plan_delete_scram_credential,
    plan_scram_feature,
    plan_set_scram_credential,
)
from sparklog.metadata.documents.snapshot import read_snapshot, write_snapshot
from sparklog.metadata.model import users
from sparklog.metadata.model.action import ActionRefusedError
from sparklog.metadata.model.actions import apply_actions
from sparklog.storage import MemoryStore
from tests.metadata.opened_logs import opened

SHA_256 = "SCRAM-SHA-256"
KEY = base64.b64encode(bytes(32)).decode()
CREDENTIAL = ScramCredential("c2FsdA==", KEY, KEY, 4096)
CLUSTER = "C" * 22


def applied(image: Image, *actions: Action) -> Image:
    return apply_actions(image, actions, commit=image.commit + 1, commit_uuid="U" * 22)


@pytest.fixture
def image() -> Image:
    return applied(empty_image(CLUSTER), RequireFeatures(readers=("scram",)))


def with_user(image: Image, name: str = "alice") -> Image:
    return applied(image, plan_set_scram_credential(image, name, SHA_256, CREDENTIAL))


def test_credential_is_set_replaced_and_deleted(image: Image) -> None:
    first = with_user(image)
    assert first.scram.find("alice", SHA_256) == CREDENTIAL
    assert first.scram.find("alice", "SCRAM-SHA-512") is first.scram.find("bob", SHA_256) is None
    changed = applied(
        first, plan_set_scram_credential(first, "alice", SHA_256, ScramCredential("eA==", KEY, KEY, 5000))
    )
    assert changed.scram.credentials["alice"][SHA_256].iterations == 5000
    gone = applied(changed, plan_delete_scram_credential(changed, "alice", SHA_256))
    assert gone.scram.credentials == {}


def test_decoy_key_is_that_of_the_first(image: Image) -> None:
    first = with_user(image)
    assert len(base64.b64decode(first.scram.decoy_key)) == 32
    assert plan_set_scram_credential(first, "bob", SHA_256, CREDENTIAL).decoy_key == ""
    second = applied(
        first, SetScramCredential(user="b", mechanism=SHA_256, credential=CREDENTIAL, decoy_key=KEY)
    )
    assert second.scram.decoy_key == first.scram.decoy_key


def test_feature_comes_first() -> None:
    image = empty_image(CLUSTER)
    action = plan_set_scram_credential(image, "alice", SHA_256, CREDENTIAL)
    with pytest.raises(ActionRefusedError, match="the feature scram is missing"):
        applied(image, action)
    feature = plan_scram_feature(image)
    assert feature is not None
    assert plan_scram_feature(applied(image, feature, action)) is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"user": ""}, "it is empty"),
        ({"user": "x" * 1001}, "at most 1000"),
        ({"user": "a\nb"}, "cannot be printed"),
        ({"mechanism": "PLAIN"}, "mechanism 'PLAIN'"),
        ({"decoy_key": "eA=="}, "decoy key"),
        ({"credential": ScramCredential("", KEY, KEY, 4096)}, "a salt"),
        ({"credential": ScramCredential("!", KEY, KEY, 4096)}, "a salt"),
        ({"credential": ScramCredential("eA==", "eA==", KEY, 4096)}, "keys that are not 32"),
        ({"credential": ScramCredential("eA==", KEY, KEY, 0)}, "0 iterations"),
        ({"credential": ScramCredential("eA==", KEY, KEY, 1 << 40)}, "iterations, expected"),
    ],
)
def test_what_does_not_apply(image: Image, fields: dict[str, object], message: str) -> None:
    words: dict[str, object] = {"user": "alice", "mechanism": SHA_256, "credential": CREDENTIAL, **fields}
    with pytest.raises(ActionRefusedError, match=message):
        applied(image, SetScramCredential(**words))  # type: ignore[arg-type]


def test_plans_refuse(image: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "MAX_USERS", 1)
    with pytest.raises(InvalidRequestError, match="INVALID_USER"):
        plan_set_scram_credential(image, "", SHA_256, CREDENTIAL)
    one = with_user(image)
    with pytest.raises(InvalidRequestError, match="found 1 users, which is the most"):
        plan_set_scram_credential(one, "bob", SHA_256, CREDENTIAL)
    with pytest.raises(ActionRefusedError, match="more than 1 users"):
        applied(one, SetScramCredential(user="bob", mechanism=SHA_256, credential=CREDENTIAL))
    plan_set_scram_credential(one, "alice", SHA_256, CREDENTIAL)
    with pytest.raises(InvalidRequestError, match="USER_MISSING"):
        plan_delete_scram_credential(one, "bob", SHA_256)


def test_snapshots_have_them(memory: MemoryStore) -> None:
    log = opened(memory)
    log.publish(
        lambda image: [
            RequireFeatures(readers=("scram",)),
            plan_set_scram_credential(image, "alice", SHA_256, CREDENTIAL),
        ]
    )
    write_snapshot(memory, log.image, timestamp_ms=0)
    read = read_snapshot(memory, log.image.commit, cluster_id=log.image.cluster_id)
    assert read == log.image
    assert read.scram.find("alice", SHA_256) == CREDENTIAL
