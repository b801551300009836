"""A bucket's lifecycle rules, and what they would do to a root."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sparklog.errors import StorageError
from sparklog.storage.s3 import S3Store, harmful_rules
from sparklog.storage.s3_options import parse_storage_options
from tests.seaweed import BUCKET, SeaweedServer
from tests.storage.s3_proxy import DENIED, FaultyProxy

SetRules = Callable[[list[dict[str, Any]]], None]
MONTH = {"Expiration": {"Days": 30}}
ARCHIVE = {"Transitions": [{"Days": 90, "StorageClass": "GLACIER"}]}


@pytest.fixture
def store(s3_root: str, s3_server: SeaweedServer) -> S3Store:
    return S3Store(s3_root, parse_storage_options(s3_server.storage_options))


@pytest.fixture
def rule(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """What is said of one rule, as the store answers it."""

    def rule(**fields: Any) -> list[str]:
        answer = {"Rules": [{"ID": "mine", "Status": "Enabled", **fields}]}
        monkeypatch.setattr(store.client, "call", lambda operation, url: answer)
        return harmful_rules(store)

    return rule


@pytest.fixture
def set_rules(s3_server: SeaweedServer) -> Iterator[SetRules]:
    client = s3_server.client()

    def set_rules(rules: list[dict[str, Any]]) -> None:
        client.put_bucket_lifecycle_configuration(Bucket=BUCKET, LifecycleConfiguration={"Rules": rules})

    yield set_rules
    client.delete_bucket_lifecycle(Bucket=BUCKET)


def test_rules_of_a_bucket(store: S3Store, set_rules: SetRules) -> None:
    assert harmful_rules(store) == []
    expiry = {"ID": "tidy", "Status": "Enabled", **MONTH}
    set_rules([{**expiry, "Filter": {"Prefix": "other/"}}])
    assert harmful_rules(store) == []
    set_rules([{**expiry, "Filter": {"Prefix": store.key_prefix}}])
    assert harmful_rules(store) == ["rule 'tidy' removes objects"]


def test_who_may_not_look_is_told(s3_root: str, s3_server: SeaweedServer) -> None:
    with FaultyProxy(s3_server.endpoint_url) as proxy:
        given = {**s3_server.storage_options, "endpoint_url": proxy.endpoint_url}
        store = S3Store(s3_root, parse_storage_options(given))
        proxy.fault = lambda _: DENIED
        with pytest.raises(StorageError, match="403 AccessDenied"):
            harmful_rules(store)


@pytest.mark.parametrize("where", ["", "inside", "segments", "root"])
def test_prefixes_that_meet_the_root(store: S3Store, rule: Callable[..., list[str]], where: str) -> None:
    root = store.key_prefix
    prefix = {"": "", "inside": f"{root}__cluster", "segments": f"{root}segments/", "root": root[:5]}[where]
    told = ["rule 'mine' removes objects"]
    assert rule(Filter={"Prefix": prefix}, **MONTH) == told
    assert rule(Filter={"And": {"Prefix": prefix, "ObjectSizeGreaterThan": 1}}, **MONTH) == told
    assert rule(Prefix=prefix, **MONTH) == told


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (MONTH, ["rule 'mine' removes objects"]),
        (ARCHIVE, ["rule 'mine' moves objects to GLACIER"]),
        ({"Expiration": {"Date": "2027-01-01"}}, ["rule 'mine' removes objects"]),
        (MONTH | {"Status": "Disabled"}, []),
        (MONTH | {"Filter": {"Prefix": "elsewhere/"}}, []),
        (MONTH | {"Filter": {"Tag": {"Key": "a", "Value": "b"}}}, []),
        (MONTH | {"Filter": {"And": {"Prefix": "", "Tags": [{"Key": "a", "Value": "b"}]}}}, []),
        ({"Expiration": {"ExpiredObjectDeleteMarker": True}}, []),
        ({"AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7}}, []),
        ({"NoncurrentVersionExpiration": {"NoncurrentDays": 7}}, []),
        ({"Transitions": [{"Days": 1, "StorageClass": "STANDARD_IA"}]}, []),
    ],
    ids=str,
)
def test_what_a_rule_does(rule: Callable[..., list[str]], fields: dict[str, Any], told: list[str]) -> None:
    assert rule(**fields) == told
