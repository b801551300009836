"""ApiVersions in every version."""

from collections.abc import Callable
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

import sparklog
from sparklog.log.config import NEWEST_TRANSACTION_VERSION
from sparklog.metadata import SetConfigs
from sparklog_server.api.registry import declared_apis
from tests.support.running_broker import RunningBroker
from tests.support.told import Told
from tests.support.wire_client import WireClient

API_VERSIONS = 18


@pytest.mark.parametrize("version", range(6))
def test_api_versions_lists_what_is_registered(asker: WireClient, version: int) -> None:
    response = asker.ask(API_VERSIONS, version)
    assert response.error_code is ErrorCode.none
    listed = {one.api_key: (one.min_version, one.max_version) for one in response.api_keys}
    served = {key: (entry.versions.start, entry.versions.stop - 1) for key, entry in declared_apis().items()}
    assert served[0][0] == 3
    assert listed == served | {0: (0, served[0][1])}


@pytest.mark.parametrize("version", [3, 4, 5])
def test_the_versions_of_transactions_and_groups_are_features(
    asker: WireClient, log: sparklog.SparkLog, version: int
) -> None:
    response = asker.ask(API_VERSIONS, version)
    supported = {one.name: (one.min_version, one.max_version) for one in response.supported_features}
    assert supported == {
        "transaction.version": (1, NEWEST_TRANSACTION_VERSION),
        "group.version": (1, 1),
        "share.version": (1, 2),
    }
    finalized = {one.name: one.max_version_level for one in response.finalized_features}
    assert finalized == {name: newest for name, (_, newest) in supported.items()}
    levels = [(one.min_version_level, one.max_version_level) for one in response.finalized_features]
    assert all(least == most for least, most in levels)
    assert response.finalized_features_epoch == log.refresh().commit


@pytest.mark.parametrize(
    ("stored", "told_of"),
    [
        ({"sparklog.transaction.version": "3"}, "sparklog.transaction.version: found 3"),
        ({"default.replication.factor": "1000"}, "default.replication.factor: found 1000"),
        ({"num.partitions": "many"}, ""),
    ],
)
def test_a_setting_that_cannot_be_keeps_nobody_out(
    start_broker: Callable[..., RunningBroker],
    connect: Callable[..., WireClient],
    told: Told,
    tmp_path: Path,
    stored: dict[str, str],
    told_of: str,
) -> None:
    """Of a newer sparklog, maybe. No client was answered, and nobody led a partition, nor could join."""
    with sparklog.open(str(tmp_path / "log")) as log:
        log.create_topic("t")
        log.metadata.publish(lambda _image: [SetConfigs(configs={**stored})])
    first = start_broker()
    first.settle()
    second = start_broker({"node.id": "2"})
    for broker in (first, second):
        response = connect(broker).ask(API_VERSIONS, 4)
        levels = {one.name: one.max_version_level for one in response.finalized_features}
        assert levels["transaction.version"] == NEWEST_TRANSACTION_VERSION
    leadership = second.broker.root.image.topics["t"].partitions[0].leadership
    assert (leadership.leader, sorted(leadership.replicas)) == (1, [1, 2])
    warnings = [one for one in told("sparklog_server") if "ignoring a setting" in one]
    assert len(warnings) == 2 * bool(told_of), "of each broker one"
    assert all(told_of in one for one in warnings)


@pytest.mark.parametrize(
    ("cluster_id", "node_id", "expected"),
    [
        (None, -1, ErrorCode.none),
        ("own", 1, ErrorCode.none),
        ("own", 2, ErrorCode.rebootstrap_required),
        ("another", 1, ErrorCode.rebootstrap_required),
        ("", 1, ErrorCode.rebootstrap_required),
        ("own", -1, ErrorCode.invalid_request),
        (None, 1, ErrorCode.invalid_request),
    ],
)
def test_who_means_another_cluster_or_node_is_sent_away(
    asker: WireClient, log: sparklog.SparkLog, cluster_id: str | None, node_id: int, expected: ErrorCode
) -> None:
    meant = log.cluster_id if cluster_id == "own" else cluster_id
    response = asker.ask(API_VERSIONS, 5, cluster_id=meant, node_id=node_id)
    assert response.error_code is expected
    assert bool(response.api_keys) == (expected is ErrorCode.none)
