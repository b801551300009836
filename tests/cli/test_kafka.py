"""Kafka's names: each is served under ours, or answered with what to type instead."""

import click
import pytest

from sparklog.cli.kafka import INSTEAD_OF_TOOL, TOOLS, translate
from sparklog.cli.main import cli
from tests.cli.conftest import Run


@pytest.mark.parametrize(
    "command",
    sorted({text.split(" -")[0] for tool in TOOLS.values() for text in tool.verbs.values()}),
)
def test_every_tool_means_a_command_that_there_is(command: str) -> None:
    found: click.Command | None = cli
    for word in command.split():
        assert isinstance(found, click.Group)
        found = found.get_command(click.Context(found), word)
    assert found is not None


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("kafka-consumer-groups --list --members", "`groups describe --members` shows them"),
        ("kafka-console-consumer --topic t --consumer-property group.id=g", "--group NAME"),
        ("consume --topic t --consumer-property=auto.offset.reset=latest", "-o beginning or -o end"),
        ("kafka-configs --alter --broker 1 --add-config a=1", "only a running broker can check its settings"),
        ("kafka-configs --describe --entity-type client-metrics", "there are no client metrics"),
        ("kafka-configs --alter --entity-type topics --add-config a=1", "give --entity-name TOPIC"),
        ("kafka-configs --alter --entity-type groups --add-config a=1", "give --entity-name GROUP"),
        ("kafka-configs --describe --group g", "give --bootstrap-server HOST:PORT"),
        ("kafka-configs --entity-type topics", "exactly one of --describe, --alter"),
        ("kafka-console-producer --topic t --producer-property acks=all", "--compression CODEC"),
        ("kafka-producer-perf-test --topic t --producer-props linger.ms=5", "producer property 'linger.ms'"),
        ("kafka-leader-election --election-type x --topic t", "expected preferred or unclean"),
        ("kafka-reassign-partitions --verify --reassignment-json-file f", "partitions list --reassigning"),
        ("kafka-reassign-partitions --execute --file - --throttle 9", "nothing is copied here"),
        ("kafka-e2e-latency h:1 t 10 all", "give BROKER TOPIC RECORDS ACKS BYTES"),
        ("kafka-e2e-latency h:1 t 10 all 20 client.properties", "a file of properties has no meaning"),
        ("kafka-topics --describe --topic t --topic-id x", "topics list --output json"),
        ("kafka-transactions --bootstrap-server h:1 abort --start-offset 0", "find-hanging"),
        ("consume -t t -b h:9092", "it is --bootstrap-server HOST:PORT"),
    ],
)
def test_an_option_that_is_not_served_is_answered_with_ours(run: Run, words: str, shown: str) -> None:
    assert shown in run(*words.split(), exit_code=2).stderr


@pytest.mark.parametrize("tool", sorted(INSTEAD_OF_TOOL))
def test_a_tool_that_is_not_served_is_answered_with_ours(run: Run, tool: str) -> None:
    told = run(f"{tool}.sh", "--list", exit_code=2).stderr
    assert f"{tool} is not known here: {INSTEAD_OF_TOOL[tool]}." in told


@pytest.mark.parametrize(
    ("words", "ours"),
    [
        (
            (
                "kafka-producer-perf-test.sh --topic t --num-records 5 --record-size 9 "
                "--producer-props acks=1 bootstrap.servers=h:1,i:1 compression.type=lz4 --print-metrics"
            ),
            (
                "perf produce --topic t --num-records 5 --record-size 9 --print-metrics "
                "--bootstrap-server h:1,i:1 --compression lz4"
            ),
        ),
        (
            "kafka-producer-perf-test --command-property acks=all --command-property=batch.size=9 --topic t",
            "perf produce --topic t --batch-size 9",
        ),
        (
            "kafka-e2e-latency.sh h:1 t 10 all 20",
            "perf e2e --bootstrap-server h:1 --topic t --num-records 10 --record-size 20",
        ),
        (
            "kafka-leader-election.sh --election-type PREFERRED --all-topic-partitions",
            "partitions elect --preferred --all",
        ),
        (
            "kafka-leader-election --election-type=unclean --topic t --partition 1",
            "partitions elect --offline --topic t --partition 1",
        ),
        (
            "kafka-reassign-partitions.sh --execute --reassignment-json-file f.json",
            "partitions reassign --file f.json",
        ),
        ("kafka-reassign-partitions --list", "partitions list --reassigning"),
        ("kafka-e2e-latency --topic t --num-records 10", "perf e2e --topic t --num-records 10"),
    ],
)
def test_properties_and_positions_become_options(words: str, ours: str) -> None:
    assert translate(words.split()) == ours.split()


@pytest.mark.parametrize("tool", ["kafka-topics.sh", "kafka-console-consumer", "kafka-consumer-groups.sh"])
def test_every_tool_has_a_version(run: Run, tool: str) -> None:
    assert run(tool, "--version").stdout == run("-V").stdout


def test_other_options_are_only_unknown(run: Run) -> None:
    assert "No such option '--membrs'" in run("groups", "list", "--membrs", exit_code=2).stderr


def test_a_tool_has_the_help_of_the_command_it_means(run: Run) -> None:
    assert run("kafka-topics", "--help").stdout.startswith("Usage: sparklog topics ")
    assert "--partitions" in run("kafka-topics", "--alter", "--help").stdout
    assert "--from-beginning" in run("kafka-console-consumer", "--help").stdout
    assert "exactly one of --list, --describe" in run("kafka-consumer-groups", exit_code=2).stderr
    assert "exactly one of" in run("kafka-topics", "--list", "--describe", exit_code=2).stderr


def test_a_mistyped_tool_is_answered_with_the_near_one(run: Run) -> None:
    for tool in TOOLS:
        assert f"'{tool}'" in run(tool[:-2] + tool[-1], exit_code=2).stderr.partition("Did you mean")[2]


def test_topics_and_transactions(run: Run) -> None:
    run("kafka-topics.sh", "--create", "--topic", "events", "--partitions", "2")
    assert run("kafka-topics", "--list").stdout == "events\n"
    assert "PartitionCount: 2" in run("kafka-topics", "--describe", "--topic", "events").stdout
    assert run("kafka-transactions", "list").stdout == "No transactional id is in use.\n"
    assert run("kafka-transactions", "find-hanging").stdout == "No transaction hangs.\n"
    run("kafka-topics", "--delete", "--topic", "events")
    assert run("kafka-topics", "--list").stdout == ""


def test_topics_are_described_in_kafkas_lines(run: Run) -> None:
    run("topics", "create", "--topic", "events", "--partitions", "2")
    heading, *partitions = run("kafka-topics", "--describe", "--topic", "events").stdout.splitlines()
    assert heading.startswith("Topic: events\tTopicId: ")
    assert partitions == [
        f"\tTopic: events\tPartition: {number}\tLeader: none\tReplicas: \tIsr: " for number in range(2)
    ]


def test_configs_of_topics(run: Run) -> None:
    run("topics", "create", "--topic", "events")
    run(
        *("kafka-configs.sh", "--alter", "--entity-type", "topics", "--entity-name", "events"),
        *("--add-config", "cleanup.policy=[delete,compact], segment.ms=5"),
    )
    altered = run(
        "kafka-configs",
        "--alter",
        "--topic=events",
        "--delete-config",
        "segment.ms",
        "--add-config=retention.ms=7",
    )
    assert altered.stdout == "Completed updating config for topic events.\n"
    of_events = ("--entity-type", "topics", "--entity-name", "events")
    described = run("kafka-configs", "--describe", *of_events).stdout.splitlines()
    policy, default = "cleanup.policy=delete,compact", "DEFAULT_CONFIG:cleanup.policy=delete"
    keep = "DEFAULT_CONFIG:retention.ms=-1"
    assert described == [
        "Dynamic configs for topic events are:",
        f"  {policy} sensitive=false synonyms={{DYNAMIC_TOPIC_CONFIG:{policy}, {default}}}",
        f"  retention.ms=7 sensitive=false synonyms={{DYNAMIC_TOPIC_CONFIG:retention.ms=7, {keep}}}",
    ]
    heading, *every = run("kafka-configs", "--describe", *of_events, "--all").stdout.splitlines()
    assert heading == "All configs for topic events are:"
    assert {*described[1:]} < {*every}


def test_configs_of_brokers_are_those_of_the_root(run: Run) -> None:
    run("topics", "create", "--topic", "events")
    of_all = ("--entity-type", "brokers", "--entity-default")
    run("kafka-configs", "--alter", *of_all, "--add-config", "retention.ms=9")
    assert "retention.ms  9" in run("kafka-configs", "--describe", *of_all).stdout
    assert "not registered" in run("kafka-configs", "--describe", "--broker", "1", exit_code=1).stderr


def test_options_that_change_nothing_here_are_served(run: Run) -> None:
    run("kafka-console-producer", "--topic", "t", "--compression-codec", "zstd", stdin="one\n")
    words = ("kafka-console-consumer", "--topic", "t", "-e", "--group", "g", "--isolation-level")
    assert run(*words, "read_uncommitted").stdout == "one\n"
    run(*words, "read_everything", exit_code=2)
    assert "g      t" in run("kafka-consumer-groups", "--describe", "--group", "g").stdout


def test_the_console_consumer_starts_at_the_end_as_kafkas(run: Run) -> None:
    run("produce", "--topic", "t", stdin="one\n")
    words = ("kafka-console-consumer", "--topic", "t", "-e")
    assert run(*words).stdout == ""
    for start in (["--from-beginning"], ["--offset=0"], ["-o-1"], ["--group", "g"]):
        assert run(*words, *start).stdout == "one\n"


def test_the_servers_of_older_tools_are_the_bootstrap_servers(run: Run) -> None:
    words = ("kafka-console-producer", "--broker-list", "127.0.0.1:1", "--topic", "t")
    assert "BROKER_UNREACHABLE" in run(*words, stdin="x\n", exit_code=1).stderr
    assert "it is empty" in run("kafka-get-offsets", "--broker-list=", exit_code=2).stderr
