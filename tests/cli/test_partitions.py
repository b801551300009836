"""What the command line asks of the controller: reassign, elect, unregister."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.cli.framework import Settings
from sparklog.client.brokers import ALTER_REASSIGNMENTS, ELECT_LEADERS, UNREGISTER_BROKER
from sparklog.errors import RetriableError
from sparklog.metadata import PartitionLeadership
from tests.cli.conftest import Run
from tests.client.fake_controller import FakeController, elected, reassigned
from tests.support.cluster_root import ClusterRoot

RunJson = Callable[..., Any]


@pytest.fixture
def log(root: Path) -> sparklog.SparkLog:
    return sparklog.open(root)


@pytest.fixture
def controller(log: sparklog.SparkLog) -> Iterator[FakeController]:
    controller = FakeController(log.cluster_id)
    with controller.serving():
        yield controller


@pytest.fixture
def cluster(log: sparklog.SparkLog, controller: FakeController) -> ClusterRoot:
    """Topic orders: partition n is led by broker n + 1, its first replica. Broker 1 is the controller."""
    cluster = ClusterRoot(log, ports={1: int(controller.address.rpartition(":")[2])})
    log.create_topic("orders", partitions=3)
    cluster.assign("orders", (1, 2), (2, 3), (3, 1))
    cluster.lead("orders", 1, 2, 3)
    return cluster


def asked(controller: FakeController) -> Any:
    ((_, request),) = controller.asked
    return request


def targets(controller: FakeController) -> dict[tuple[str, int], tuple[int, ...] | None]:
    return {
        (topic.name, one.partition_index): one.replicas
        for topic in asked(controller).topics
        for one in topic.partitions
    }


def file_of(tmp_path: Path, *partitions: tuple[int, list[int]], topic: str = "orders") -> str:
    path = tmp_path / "moves.json"
    entries = [{"topic": topic, "partition": number, "replicas": replicas} for number, replicas in partitions]
    path.write_text(json.dumps({"version": 1, "partitions": entries}))
    return str(path)


# --- reassign -----------------------------------------------------------------------------------------


def test_partitions_of_a_topic_are_reassigned_at_once(
    cluster: ClusterRoot, controller: FakeController, run: Run
) -> None:
    controller.answers = {
        ALTER_REASSIGNMENTS: reassigned(*(("orders", number, 0, None) for number in range(3)))
    }
    shown = run("partitions", "reassign", "--topic", "orders", "--replicas", "3,2")
    assert targets(controller) == {("orders", number): (3, 2) for number in range(3)}
    assert shown.stdout.splitlines()[-1] == (
        "Successfully started partition reassignments for orders-0,orders-1,orders-2"
    )


def test_some_partitions_are_reassigned_through_a_broker_that_is_named(
    cluster: ClusterRoot, controller: FakeController, run_json: RunJson
) -> None:
    controller.answers = {ALTER_REASSIGNMENTS: reassigned(("orders", 2, 0, None))}
    controller.root = cluster.log.url
    other = FakeController(cluster.log.cluster_id, controller_id=2, others={2: controller.address})
    other.root = cluster.log.url
    with other.serving() as server:
        words = ("--bootstrap-server", server, "partitions", "reassign", "-t", "orders")
        found = run_json(*words, "-p", "2", "--replicas", "1")
    assert targets(controller) == {("orders", 2): (1,)}
    assert found == {
        "current": {"version": 1, "partitions": [{"topic": "orders", "partition": 2, "replicas": [3, 1]}]},
        "proposed": {"version": 1, "partitions": [{"topic": "orders", "partition": 2, "replicas": [1]}]},
        "partitions": [{"topic": "orders", "partition": 2, "error": None, "message": None}],
    }


def test_a_proposal_is_shown_then_made_and_undone_by_its_file(
    cluster: ClusterRoot, controller: FakeController, run: Run, run_json: RunJson, tmp_path: Path
) -> None:
    words = ("partitions", "reassign", "--topic", "orders", "--brokers", "2,3")
    lines = run(*words, "--dry-run").stdout.splitlines()
    assert lines[0] == "Current partition replica assignment"
    assert lines[-2] == "Proposed partition reassignment configuration"
    proposed = {one["partition"]: one["replicas"] for one in json.loads(lines[-1])["partitions"]}
    assert proposed == {0: [2, 3], 1: [3, 2], 2: [2, 3]}
    assert run_json(*words, "--dry-run")["proposed"] == json.loads(lines[-1])
    assert controller.asked == []
    controller.answers = {
        ALTER_REASSIGNMENTS: reassigned(*(("orders", number, 0, None) for number in range(3)))
    }
    begun = run(*words).stdout.splitlines()
    assert targets(controller) == {("orders", number): tuple(ids) for number, ids in proposed.items()}
    controller.asked.clear()
    (tmp_path / "before.json").write_text(begun[2])
    run("partitions", "reassign", "--file", str(tmp_path / "before.json"))
    assert targets(controller) == {("orders", 0): (1, 2), ("orders", 1): (2, 3), ("orders", 2): (3, 1)}


def racks(partitions: list[dict[str, Any]]) -> list[int]:
    """How many racks each has: brokers 1 and 2 are in one, 3 and 4 in another."""
    return [len({node_id > 2 for node_id in one["replicas"]}) for one in partitions]


def test_a_proposal_spreads_over_racks(log: sparklog.SparkLog, run: Run, run_json: RunJson) -> None:
    cluster = ClusterRoot(log, (1, 2, 3, 4), racks={1: "a", 2: "a", 3: "b", 4: "b"})
    log.create_topic("wide", partitions=8)
    cluster.assign("wide", *[(1, 2)] * 8)
    words = ("partitions", "reassign", "--dry-run", "--topic", "wide", "--brokers")
    proposed = run_json(*words, "1,2,3,4")["proposed"]["partitions"]
    assert racks(proposed) == [2] * 8
    assert sorted(one["replicas"][0] for one in proposed) == [1, 1, 2, 2, 3, 3, 4, 4]
    wider = run_json(*words, "1,2,3,4", "--replication-factor", "4")["proposed"]["partitions"]
    assert all(sorted(one["replicas"]) == [1, 2, 3, 4] for one in wider)
    without = run_json(*words, "1,2,3,4", "--ignore-racks")["proposed"]["partitions"]
    assert 1 in racks(without)
    assert len(run_json(*words, "1,2", "-p", "3")["proposed"]["partitions"]) == 1
    assert "found 1 brokers, expected 2" in run(*words, "1", exit_code=1).stderr
    assert "BROKER_MISSING" in run(*words, "1,9", exit_code=1).stderr


def test_what_the_controller_refuses_ends_the_command(
    cluster: ClusterRoot, controller: FakeController, run: Run, tmp_path: Path
) -> None:
    controller.answers = {
        ALTER_REASSIGNMENTS: reassigned(("orders", 0, 0, None), ("orders", 1, 39, "broker 9 is none"))
    }
    path = file_of(tmp_path, (0, [1]), (1, [9]))
    shown = run("partitions", "reassign", "--file", path, exit_code=1)
    assert "1 of 2 partitions: orders-1: INVALID_REPLICA_ASSIGNMENT: broker 9 is none" in shown.stderr
    assert shown.stdout.splitlines()[-1] == "Successfully started partition reassignment for orders-0"
    controller.answers = {ALTER_REASSIGNMENTS: reassigned(error_code=31, error_message="no")}
    refused = run("partitions", "reassign", "--file", path, "--output", "json", exit_code=1)
    assert json.loads(refused.stderr)["error"]["message"] == "CLUSTER_AUTHORIZATION_FAILED: no"


def test_what_to_go_back_to_is_told_before_it_is_asked_for(
    cluster: ClusterRoot, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is lost, and it may be done."""

    class Unheard:
        def reassign(self, _wanted: object) -> None:
            raise RetriableError("CONTROLLER_UNREACHABLE", "no answer", fix="ask again")

    monkeypatch.setattr(Settings, "controller", lambda *_: Unheard())
    words = ("partitions", "reassign", "--topic", "orders", "-p", "1", "--replicas", "1")
    before = {"version": 1, "partitions": [{"topic": "orders", "partition": 1, "replicas": [2, 3]}]}
    shown = run(*words, exit_code=1)
    assert json.loads(shown.stdout.splitlines()[2]) == before
    assert "CONTROLLER_UNREACHABLE" in shown.stderr
    shown = run(*words, "--output", "json", exit_code=1)
    assert json.loads(shown.stdout)["current"] == before
    assert json.loads(shown.stdout)["partitions"] == []


def test_reassignments_that_are_not_done_are_listed_and_called_off(
    cluster: ClusterRoot, controller: FakeController, run: Run, run_json: RunJson, tmp_path: Path
) -> None:
    path = file_of(tmp_path, (0, [1]), (1, []))
    words = ("partitions", "reassign", "--cancel")
    assert run_json("partitions", "list", "--reassigning") == []
    assert "None of the specified" in run(*words, "--file", path).stdout
    assert run_json(*words, "--topic", "orders")["partitions"] == []
    cluster.assign("orders", (1, 2), PartitionLeadership((3, 1, 2), adding=(1,), removing=(2,)))
    (listed,) = run_json("partitions", "list", "--reassigning")
    assert (listed["partition"], listed["adding"], listed["removing"]) == (1, [1], [2])
    controller.answers = {ALTER_REASSIGNMENTS: reassigned(("orders", 1, 0, None))}
    shown = run(*words, "--file", path).stdout.splitlines()
    assert shown[-1] == "Successfully cancelled partition reassignment for orders-1"
    assert targets(controller) == {("orders", 1): None}


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ((), "give --topic NAME or --file FILE"),
        (("--topic", "orders", "--file", "-"), "give --topic NAME or --file FILE"),
        (("--topic", "orders"), "one of --replicas, --brokers and --cancel"),
        (("--topic", "orders", "--replicas", "1", "--cancel"), "one of --replicas, --brokers and --cancel"),
        (("--file", "-", "--brokers", "1"), "with --file only --cancel"),
        (("--file", "-", "--partition", "1"), "--partition with --topic"),
        (("--topic", "orders", "--replicas", "1", "--ignore-racks"), "go with --brokers"),
        (("--topic", "orders", "--replicas", "1,x"), "expected ids of brokers"),
        (("--topic", "orders", "--replicas", "1,1"), "expected each broker once"),
        (("--file", "/nowhere"), "No such file"),
    ],
)
def test_what_does_not_go_together_is_refused(run: Run, words: tuple[str, ...], shown: str) -> None:
    assert shown in run("partitions", "reassign", *words, exit_code=2).stderr


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", "Input data was truncated"),
        ("[" * 100_000, "bad.json: "),
        ("[]", "Expected `object`"),
        ('{"partitions": []}', "Expected `array` of length >= 1"),
        ('{"version": 2, "partitions": [{}]}', "$.version"),
        ('{"partitions": [1]}', "Expected `object`, got `int`"),
        ('{"partitions": [{"topic": "t", "replicas": [1]}]}', "missing required field `partition`"),
        (
            '{"partitions": [{"topic": "t", "partition": true, "replicas": [1]}]}',
            "Expected `int`, got `bool`",
        ),
        ('{"partitions": [{"topic": 1, "partition": 0, "replicas": [1]}]}', "Expected `str`, got `int`"),
        ('{"partitions": [{"topic": "t", "partition": 0}]}', "t-0: found replicas []"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": [1, -1]}]}', "Expected `int` >= 0"),
        (
            '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 1]}]}',
            "expected brokers, each once",
        ),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": [1], "log_dirs": ["/a"]}]}', "log_dirs"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": [1], "log_dirs": 3}]}', "log_dirs"),
        (
            '{"partitions": [%s, %s]}' % (('{"topic": "t", "partition": 0, "replicas": [1]}',) * 2),
            "found t-0 again",
        ),
    ],
)
def test_files_that_are_not_kafkas_are_refused(
    cluster: ClusterRoot, run: Run, tmp_path: Path, text: str, shown: str
) -> None:
    (tmp_path / "bad.json").write_text(text)
    told = run("partitions", "reassign", "--file", str(tmp_path / "bad.json"), exit_code=1).stderr
    assert "INVALID_PARTITION_FILE" in told
    assert shown in told


def test_a_file_may_begin_with_a_mark(cluster: ClusterRoot, run: Run, tmp_path: Path) -> None:
    text = '{"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [1]}]}\r\n'
    (tmp_path / "moves.json").write_bytes(text.encode("utf-8-sig"))
    words = ("partitions", "reassign", "--dry-run", "--file", str(tmp_path / "moves.json"))
    assert "Proposed" in run(*words).stdout
    (tmp_path / "moves.json").write_bytes(text.encode("utf-16"))
    assert "INVALID_PARTITION_FILE" in run(*words, exit_code=1).stderr


def test_any_log_directory_will_do_since_there_is_one(
    cluster: ClusterRoot, controller: FakeController, run: Run
) -> None:
    controller.answers = {ALTER_REASSIGNMENTS: reassigned(("orders", 0, 0, None))}
    text = '{"partitions": [{"topic": "orders", "partition": 0, "replicas": [2], "log_dirs": ["any"]}]}'
    run("partitions", "reassign", "--file", "-", stdin=text)
    assert targets(controller) == {("orders", 0): (2,)}


def test_a_topic_is_made_with_as_many_replicas_as_are_asked_for(
    cluster: ClusterRoot, controller: FakeController, run: Run
) -> None:
    controller.answers = {
        ALTER_REASSIGNMENTS: reassigned(*(("wide", number, 0, None) for number in range(3)))
    }
    run("topics", "create", "--topic", "wide", "--partitions", "3", "--replication-factor", "2")
    found = targets(controller)
    assert sorted(found) == [("wide", 0), ("wide", 1), ("wide", 2)]
    assert {len(replicas or ()) for replicas in found.values()} == {2}
    assert {(replicas or ())[0] for replicas in found.values()} == {1, 2, 3}
    controller.asked.clear()
    run("topics", "create", "--topic", "default")
    words = ("topics", "create", "--topic", "wide", "--replication-factor", "2", "--if-not-exists")
    assert "exists already" in run(*words).stdout
    cluster.fence(3)
    refused = run("topics", "create", "--topic", "more", "--replication-factor", "3", exit_code=1).stderr
    assert "found 3, expected at most 2, the brokers that run" in refused
    assert controller.asked == []
    assert cluster.log.topics() == ["default", "orders", "wide"]


# --- elect --------------------------------------------------------------------------------------------


def test_leaders_are_elected(
    cluster: ClusterRoot, controller: FakeController, run: Run, run_json: RunJson
) -> None:
    controller.answers = {ELECT_LEADERS: elected(("orders", 0, 0), ("orders", 1, 84))}
    shown = run("partitions", "elect", "--preferred", "--topic", "orders", "-p", "1", "-p", "0")
    assert shown.stdout.splitlines() == [
        "Successfully completed leader election (PREFERRED) for partitions orders-0",
        "Valid replica already elected for partitions orders-1",
    ]
    assert [(one.topic, one.partitions) for one in asked(controller).topic_partitions] == [("orders", (0, 1))]
    assert asked(controller).election_type == 0
    controller.asked.clear()
    found = run_json("partitions", "elect", "--offline", "--topic", "orders", "-p", "1")
    assert found[1] == {"topic": "orders", "partition": 1, "error": "ELECTION_NOT_NEEDED", "message": None}
    assert asked(controller).election_type == 1
    assert [(one.topic, one.partitions) for one in asked(controller).topic_partitions] == [("orders", (1,))]
    controller.asked.clear()
    controller.answers = {ELECT_LEADERS: elected()}
    assert run("partitions", "elect", "--preferred", "--all").stdout == "No election was needed.\n"
    assert asked(controller).topic_partitions is None


def test_an_election_that_cannot_be_is_told(
    cluster: ClusterRoot, controller: FakeController, run: Run
) -> None:
    controller.answers = {ELECT_LEADERS: elected(("orders", 0, 0), ("orders", 1, 80))}
    shown = run("partitions", "elect", "--preferred", "--topic", "orders", exit_code=1).stderr
    assert "1 of 2 partitions: orders-1: PREFERRED_LEADER_NOT_AVAILABLE" in shown
    for words in (("--all",), ("--preferred",), ("--preferred", "--all", "--topic", "t")):
        assert "give --" in run("partitions", "elect", *words, exit_code=2).stderr


# --- unregister ---------------------------------------------------------------------------------------


def test_a_broker_is_unregistered(
    cluster: ClusterRoot, controller: FakeController, run: Run, run_json: RunJson
) -> None:
    controller.answers = {UNREGISTER_BROKER: {"error_code": 0, "error_message": None}}
    assert run("brokers", "unregister", "3").stdout == "Broker 3 is no longer registered.\n"
    assert asked(controller).broker_id == 3
    assert run_json("brokers", "unregister", "3", "--yes") == {"unregistered": 3}
    controller.answers = {UNREGISTER_BROKER: {"error_code": 42, "error_message": "it runs"}}
    assert "broker 3: INVALID_REQUEST: it runs" in run("brokers", "unregister", "3", exit_code=1).stderr
    assert "BROKER_MISSING" in run("brokers", "unregister", "9", exit_code=1).stderr


def test_where_no_broker_runs_nothing_can_be_decided(cluster: ClusterRoot, run: Run) -> None:
    for node in (3, 2, 1):
        cluster.fence(node)
    for words in (
        ("brokers", "unregister", "3"),
        ("partitions", "elect", "--preferred", "--all"),
        ("partitions", "reassign", "--topic", "orders", "--replicas", "1"),
    ):
        assert "NO_BROKER_RUNS" in run(*words, exit_code=1).stderr
