"""Who looks into a failed run finds where a worker stood."""

from pathlib import Path

import sparklog
from tests.brokers.stuck import explain
from tests.brokers.working import PARTITIONS, TOPIC, working
from tests.support.broker_process import until


def test_threads_of_a_worker_are_told(tmp_path: Path) -> None:
    root = str(tmp_path / "log")
    with sparklog.open(root, create=True) as log:
        log.create_topic(TOPIC, PARTITIONS)
    with working(tmp_path, [("beside", "reader", root, "reader")]) as (reader,):
        until(lambda: reader.size() > 0, 60, "it reads")
        told = explain([reader], bootstrap="")
        assert 'beside.py", line' in told
        assert "in main" in told
        reader.kill()
        assert "ended: exit -9" in explain([reader], bootstrap="")
