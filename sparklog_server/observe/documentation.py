"""docs/metrics.md: every metric that a broker serves, from the code that serves it.

The page is made by a scrape of a broker that has nothing, so that it cannot drift from the code.
"""

from prometheus_client.core import Metric

from sparklog.metadata import empty_image
from sparklog_server.metrics.metrics import Gauge, Metrics
from sparklog_server.observe.broker_families import (
    internal_families,
    request_families,
    saturation_families,
    traffic_families,
)
from sparklog_server.observe.cluster_families import cluster_families, replica_families, standing_of
from sparklog_server.observe.log_families import group_families, partition_families
from sparklog_server.observe.maintenance_families import maintenance_families
from sparklog_server.observe.observation import Observation
from sparklog_server.observe.transaction_families import transaction_families

_LABELS = {
    "kafka_server_brokertopicmetrics_": "topic (none: all topics)",
    "kafka_network_requestmetrics_requests": "request, version",
    "kafka_network_requestmetrics_errors": "request, error",
    "kafka_network_requestmetrics_": "request, quantile",
    "kafka_server_delayedoperationpurgatory_": "delayedOperation",
    "kafka_controller_controllerstats_": "quantile",
    "kafka_log_log_size": "topic, partition",
    "kafka_topic_partitions": "topic",
    "kafka_topic_partition_": "topic, partition",
    "kafka_consumergroup_lag_sum": "consumergroup",
    "kafka_consumergroup_members": "consumergroup",
    "kafka_consumergroup_": "consumergroup, topic, partition",
    "sparklog_consumergroup_": "consumergroup, topic, partition",
    "sparklog_groups": "state",
    "sparklog_transactions_ended": "by",
    "sparklog_transactions_": "",
    "sparklog_transactions": "state",
    "sparklog_broker_state": "state",
    "sparklog_connections_refused": "reason",
}


def describe_metrics() -> str:
    """A Markdown table of all metrics."""
    metrics = Metrics()
    seen = Observation(
        node_id=0,
        state="RUNNING",
        is_serving=True,
        is_registered=True,
        is_controller=True,
        root_visible=True,
        image=empty_image("A" * 22),
        metrics=metrics,
        gauges=dict.fromkeys(Gauge, 0.0),
        groups=(),
        loop_idle=1.0,
        storage_idle=1.0,
        now_ms=0,
    )
    standing = standing_of(seen)
    families: list[Metric] = [
        *traffic_families(seen),
        *request_families(seen),
        *saturation_families(seen),
        *cluster_families(seen, standing),
        *partition_families(seen, standing),
        *replica_families(seen, standing),
        *group_families(seen),
        *transaction_families(seen),
        *maintenance_families(seen),
        *internal_families(seen),
    ]
    rows = [
        f"|`{_name(one)}`|{_labels(one)}|{one.documentation}|"
        for one in families
        if not one.name.endswith("_count") or one.type != "unknown"
    ]
    return "\n".join(["|name|labels|meaning|", "|-|-|-|", *rows]) + "\n"


def _name(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


def _labels(family: Metric) -> str:
    for prefix, labels in _LABELS.items():
        if family.name.startswith(prefix):
            return labels
    return "quantile" if any("quantile" in sample.labels for sample in family.samples) else ""
