"""The crash matrix on real processes: a directory, an S3 server, and one behind a proxy that loses requests.

SPARKLOG_CHAOS_KILLS sets the number of kills on each (make chaos: 80), SPARKLOG_SEED repeats a run.
"""

import contextlib
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from sparklog.client import SparkLog
from sparklog.clock import SystemClock
from sparklog.metadata import MetadataLog
from sparklog.storage import open_store
from tests.bucket_servers import NAMES, BucketServer, are_built
from tests.crash.lossy_route import LossyRoute
from tests.crash.matrix import Children, Matrix
from tests.crash.matrix_worker import FATAL, FENCED, PARTITIONS, values_of
from tests.seaweed import SeaweedServer
from tests.storage.http_proxies import proxied
from tests.storage.s3_proxy import FaultyProxy
from tests.support.broker_process import until
from tests.support.several_brokers import take_over

CHAOS = "SPARKLOG_CHAOS_KILLS" in os.environ
KILLS = int(os.environ.get("SPARKLOG_CHAOS_KILLS", "24"))
SEED = int(os.environ.get("SPARKLOG_SEED", str(random.SystemRandom().randrange(1 << 31))))
RESTARTS = max(1, KILLS // 80)
STORES = ["directory", "s3", "proxied"]


@pytest.fixture(scope="module")
def children(s3_reserved: SeaweedServer) -> Iterator[Children]:
    """The parent of all writers, which knows where the S3 server will be."""
    parent = Children(s3_reserved.environment)
    yield parent
    parent.close()


@pytest.fixture(params=STORES if CHAOS else STORES[:2])
def matrix(children: Children, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Matrix]:
    """A root on one kind of store, and its writers."""
    if request.param == "proxied":
        with behind_a_proxy(request.getfixturevalue("s3_server"), tmp_path) as made:
            yield made
        return
    remote = request.param == "s3"
    root = str(request.getfixturevalue("s3_root")) if remote else str(tmp_path / "log")
    with Matrix(children, root, tmp_path, SEED, remote=remote) as made:
        yield made


@contextmanager
def behind_a_proxy(server: SeaweedServer, directory: Path) -> Iterator[Matrix]:
    """Writers that know the S3 server through a proxy alone, which loses requests and answers; the test's own
    readers go past it.
    """
    with proxied("forward", server, directory) as route, LossyRoute(route.faulty, SEED):
        with route.told():
            parent = Children(server.environment)
        with (
            contextlib.closing(parent),
            Matrix(parent, server.new_root(), directory, SEED, remote=True) as made,
        ):
            yield made
            assert not made.tally.rounds or route.faulty.faults, "the writers went past the proxy"


@pytest.mark.timeout(120 + 10 * KILLS)
def test_killed_at_every_point_nothing_is_lost_or_repeated(
    matrix: Matrix, report: Callable[[str], None]
) -> None:
    report(f"SPARKLOG_SEED={SEED}")
    matrix.run(KILLS if CHAOS or not matrix.remote else KILLS // 3)
    tally = matrix.finish()
    report(str(tally))
    assert tally.anomalies == []


@pytest.mark.skipif(CHAOS, reason="make chaos has it among its stores, with more kills")
def test_behind_a_proxy_that_loses_requests_nothing_is_lost_or_repeated(
    s3_server: SeaweedServer, tmp_path: Path, report: Callable[[str], None]
) -> None:
    report(f"SPARKLOG_SEED={SEED}")
    with behind_a_proxy(s3_server, tmp_path) as matrix:
        matrix.run(KILLS // 6)
        tally = matrix.finish()
    report(str(tally))
    assert tally.anomalies == []


@pytest.mark.timeout(600)
@pytest.mark.skipif(not are_built(), reason="make test-stores has the servers")
@pytest.mark.parametrize("name", NAMES)
def test_on_other_stores_and_a_lossy_way_nothing_is_lost_or_repeated(
    bucket_server: Callable[[str], BucketServer], name: str, tmp_path: Path, report: Callable[[str], None]
) -> None:
    report(f"SPARKLOG_SEED={SEED}")
    server = bucket_server(name)
    with FaultyProxy(server.endpoint_url) as proxy, LossyRoute(proxy, SEED):
        parent = Children(server.environment_at(proxy.endpoint_url))
        with (
            contextlib.closing(parent),
            Matrix(parent, server.new_root(), tmp_path, SEED, remote=True) as matrix,
        ):
            matrix.run(40)
            tally = matrix.finish()
            assert proxy.faults
    report(str(tally))
    assert tally.anomalies == []


def found(log: SparkLog, role: str) -> list[list[str]]:
    """The values of each partition."""
    tables = [pa.Table.from_batches(list(log.read_batches(role, p))) for p in range(PARTITIONS)]
    return [[value.decode() for value in table["value"].to_pylist()] for table in tables]


def expected(role: str, operations: int) -> list[list[str]]:
    """The values of so many operations."""
    return [
        [value for number in range(operations) for value in values_of(role, p, number)]
        for p in range(PARTITIONS)
    ]


@pytest.mark.parametrize("point", ["broker.produce.synced", "commit.planned", "put.guard_passed"])
def test_a_leader_that_was_paused_publishes_nothing_after_another_took_over(
    matrix: Matrix, tmp_path: Path, point: str
) -> None:
    if matrix.remote and point.startswith("put."):
        pytest.skip("a step of putting into a directory")
    assert matrix.children.wait(matrix.start("broker", operations=2)) == 0
    go = tmp_path / "go"
    # The first passes are its registration.
    passes = 1 if point.startswith("broker.") else 2
    paused = matrix.start("broker", operations=1, fail=f"{point}:{passes}:pause={go}")
    until(Path(f"{go}.reached").exists)
    with sparklog.open(matrix.root, create=False) as log:
        before = found(log, "broker")
        epoch = take_over(log)  # the node's, as if it was known to be dead
        go.touch()
        assert matrix.children.wait(paused) == FENCED
        log.refresh()
        assert found(log, "broker") == before == expected("broker", 2)
        epoch.validate(log.image)
    assert len(matrix.acked("broker")) == 2
    assert matrix.children.wait(matrix.start("broker", operations=2)) == 0
    with sparklog.open(matrix.root, create=False) as log:
        assert found(log, "broker") == expected("broker", 4)


def test_epochs_rise_also_over_a_broker_that_died_before_it_knew_its_own(matrix: Matrix) -> None:
    epochs = []
    for fail in ("", "broker.registered:1", "broker.registered:1", ""):
        code = matrix.children.wait(matrix.start("broker", operations=1, fail=fail))
        assert code == (-9 if fail else 0)
        registered = MetadataLog.open(open_store(matrix.root), SystemClock()).image.brokers[1]
        epochs.append(registered.broker_epoch)
    assert epochs == sorted(set(epochs))


def test_a_task_that_wakes_up_after_its_batch_was_committed_adds_nothing(
    matrix: Matrix, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    zombie = matrix.start("sink", operations=1, fail=f"task.staged:2:pause={go}")
    until(Path(f"{go}.reached").exists)
    assert matrix.children.wait(matrix.start("sink", operations=3)) == 0
    go.touch()
    assert matrix.children.wait(zombie) == 0
    with sparklog.open(matrix.root, create=False) as log:
        assert found(log, "sink") == expected("sink", 3)


@pytest.mark.parametrize("role", ["embedded", "sink", "broker"] if CHAOS else ["embedded"])
def test_writers_wait_for_a_store_that_is_killed_and_comes_back(
    children: Children, s3_server: SeaweedServer, tmp_path: Path, role: str, report: Callable[[str], None]
) -> None:
    with Matrix(children, s3_server.new_root(), tmp_path, SEED, remote=True) as matrix:
        matrix.run(0)
        for _ in range(RESTARTS):
            before = len(matrix.acked(role))
            writer = matrix.start(role, operations=8)
            until(lambda: len(matrix.acked(role)) >= before + 2)  # noqa: B023 - asked at once
            s3_server.restart(kill=True)
            assert matrix.children.wait(writer, lambda: len(matrix.acked(role))) == 0
            assert len(matrix.acked(role)) == before + 8
        tally = matrix.finish()
    report(f"{RESTARTS} kills of the store, {tally.operations} operations, {len(tally.anomalies)} anomalies")
    assert tally.anomalies == []


@pytest.mark.parametrize("role", ["embedded", "sink", "broker"])
@pytest.mark.parametrize("point", ["file.sync", "put.sync", "directory.sync"])
def test_a_process_whose_fsync_fails_acknowledges_nothing_and_ends(
    children: Children, tmp_path: Path, role: str, point: str
) -> None:
    with Matrix(children, str(tmp_path / "log"), tmp_path, SEED, remote=False) as matrix:
        assert matrix.children.wait(matrix.start(role, operations=2)) == 0
        assert matrix.children.wait(matrix.start(role, operations=9, fail=f"{point}:4:raise=EIO")) == FATAL
        done = len(matrix.acked(role))
        assert done < 2 + 9
        assert matrix.children.wait(matrix.start(role, operations=1)) == 0
        with sparklog.open(matrix.root, create=False) as log:
            assert found(log, role) == expected(role, done + 1)
