"""What each of several brokers says of replicas and leaders: together, everything once."""

from typing import Any

from prometheus_client.core import Metric

from sparklog.metadata import Image
from sparklog_server.metrics.metrics import Metrics
from sparklog_server.observe.families import (
    broker_partitions,
    cluster_families,
    partition_families,
    replica_families,
)
from sparklog_server.observe.observation import Observation
from tests.metadata.cluster_roots import cluster, fenced, led

REPLICAS = "kafka_server_replicamanager_"
CONTROLLER = "kafka_controller_kafkacontroller_"


def seen(image: Image, node_id: int, **fields: Any) -> Observation:
    values: dict[str, Any] = {
        "state": "RUNNING",
        "is_serving": True,
        "is_registered": True,
        "root_visible": True,
        "gauges": {},
        "groups": (),
        "loop_idle": 1.0,
        "storage_idle": 1.0,
        "now_ms": 0,
    }
    is_controller = not image.brokers or image.controller.node_id == node_id
    values |= {"is_controller": is_controller, "metrics": Metrics(), **fields}
    return Observation(node_id=node_id, image=image, **values)


def families(observation: Observation) -> dict[str, Metric]:
    own = broker_partitions(observation)
    found = [
        *cluster_families(observation, own),
        *partition_families(observation, own),
        *replica_families(observation, own),
    ]
    return {one.name: one for one in found}


def value(found: dict[str, Metric], name: str) -> float:
    (sample,) = found[name].samples
    return float(sample.value)


def by_partition(found: dict[str, Metric], name: str) -> dict[str, float]:
    return {sample.labels["partition"]: sample.value for sample in found[name].samples}


def counts(image: Image, node_id: int, **fields: Any) -> dict[str, int]:
    found = families(seen(image, node_id, **fields))
    names = ["partitioncount", "leadercount", "underreplicatedpartitions", "underminisrpartitioncount"]
    told = {name: int(value(found, REPLICAS + name)) for name in names}
    told |= {
        name: int(value(found, CONTROLLER + name))
        for name in ("activecontrollercount", "offlinepartitionscount")
    }
    return told | {"brokers": int(value(found, "kafka_brokers"))}


def test_together_they_count_everything_once() -> None:
    image = led(cluster(), [1, 2, 2])
    found = [counts(image, node) for node in (1, 2, 3)]
    assert [one["leadercount"] for one in found] == [1, 2, 0]
    assert [one["partitioncount"] for one in found] == [3, 3, 3]
    assert [one["activecontrollercount"] for one in found] == [1, 0, 0]
    assert [one["offlinepartitionscount"] for one in found] == [0, 0, 0]
    assert [one["underreplicatedpartitions"] for one in found] == [0, 0, 0]
    assert [one["brokers"] for one in found] == [3, 3, 3]
    told = [
        sorted(by_partition(families(seen(image, node)), "kafka_topic_partition_current_offset"))
        for node in (1, 2, 3)
    ]
    assert told == [["0"], ["1", "2"], []]


def test_a_fenced_broker_is_missed() -> None:
    image = fenced(led(cluster(), [1, 2, 3]), 3)
    first, second, third = (counts(image, node) for node in (1, 2, 3))
    assert (first["brokers"], first["leadercount"], first["underreplicatedpartitions"]) == (2, 1, 1)
    assert first["offlinepartitionscount"] == 1  # as controller
    assert (second["offlinepartitionscount"], second["underreplicatedpartitions"]) == (0, 1)
    assert (third["leadercount"], third["activecontrollercount"]) == (0, 0)
    found = families(seen(image, 1))
    assert by_partition(found, "kafka_topic_partition_leader") == {"0": 1, "2": -1}
    assert by_partition(found, "kafka_topic_partition_replicas") == {"0": 3, "2": 3}
    assert by_partition(found, "kafka_topic_partition_in_sync_replica") == {"0": 2, "2": 2}
    assert by_partition(found, "kafka_topic_partition_under_replicated_partition") == {"0": 1, "2": 1}


def test_one_that_does_not_see_the_root_says_so_for_what_it_has() -> None:
    image = led(cluster(), [1, 2, 2])
    found = counts(image, 2, root_visible=False)
    assert (found["offlinepartitionscount"], found["underreplicatedpartitions"]) == (2, 3)
    assert found["underminisrpartitioncount"] == 3
    told = families(seen(image, 2, root_visible=False))
    assert by_partition(told, "kafka_topic_partition_in_sync_replica") == {"1": 0, "2": 0}
