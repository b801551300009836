"""What clients are told of leaders and their epochs."""

import pytest

from sparklog.client import SparkLog
from sparklog_server.cluster.leadership import Leader, Leadership


@pytest.mark.parametrize(
    ("theirs", "error"),
    [(-1, "none"), (0, "none"), (1, "unknown_leader_epoch"), (-2, "fenced_leader_epoch")],
)
def test_an_epoch_that_clients_name_is_compared_with_the_leaders(
    log: SparkLog, theirs: int, error: str
) -> None:
    partition = log.image.topics["orders"].partitions[0]
    assert Leadership(7, log).epoch_error(partition, theirs).name == error


def test_one_broker_is_everything(log: SparkLog) -> None:
    leadership = Leadership(7, log)
    orders = log.image.topics["orders"]
    assert leadership.leader_of(orders.partitions[0]) == Leader(7, 0)
    assert leadership.leads(orders.partitions[0])
    assert leadership.leaders_of(orders) == ((Leader(7, 0), 3),)
    assert (
        leadership.controller_id,
        leadership.coordinator_of(orders.partitions[0]),
        leadership.brokers,
    ) == (7, 7, (7,))
