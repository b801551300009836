"""Words of Kafka's tools: each is served here, or told what to type instead."""

from pathlib import Path

import click
import pytest

from sparklog.cli.kafka_words import explanation, why_no_command
from sparklog.cli.main import cli
from tests.cli.conftest import Run

# The options of Kafka 4's tools, without --help; of kcat its short ones.
OPTIONS = {
    "kafka-topics": """
        alter at-min-isr-partitions bootstrap-server command-config config create delete delete-config
        describe exclude-internal if-exists if-not-exists list partition-size-limit-per-response
        partitions replica-assignment replication-factor topic topic-id topics-with-overrides
        unavailable-partitions under-min-isr-partitions under-replicated-partitions version
    """,
    "kafka-consumer-groups": """
        all-groups all-topics bootstrap-server by-duration command-config delete delete-offsets describe
        dry-run execute export from-file group list members offsets reset-offsets shift-by state timeout
        to-current to-datetime to-earliest to-latest to-offset topic type validate-regex verbose version
    """,
    "kafka-configs": """
        add-config add-config-file all alter bootstrap-controller bootstrap-server broker broker-defaults
        broker-logger client client-defaults client-metrics command-config delete-config describe
        entity-default entity-name entity-type force group if-exists ip ip-defaults topic user
        user-defaults version
    """,
    "kafka-console-consumer": """
        bootstrap-server command-config command-property consumer-property consumer.config
        enable-systest-events formatter formatter-config formatter-property from-beginning group include
        isolation-level key-deserializer max-messages offset partition property skip-message-on-error
        timeout-ms topic value-deserializer version whitelist
    """,
    "kafka-console-producer": """
        batch-size bootstrap-server broker-list command-config command-property compression-codec
        line-reader max-block-ms max-memory-bytes max-partition-memory-bytes message-send-max-retries
        metadata-expiry-ms producer-property producer.config property reader-config reader-property
        request-required-acks request-timeout-ms retry-backoff-ms socket-buffer-size sync timeout topic
        version
    """,
    "kafka-get-offsets": """
        bootstrap-server broker-list command-config exclude-internal-topics partitions time topic
        topic-partitions version
    """,
    "kafka-dump-log": """
        cluster-metadata-decoder deep-iteration files index-sanity-check key-decoder-class max-bytes
        max-message-size offsets-decoder print-data-log remote-log-metadata-decoder
        share-group-state-decoder skip-record-metadata transaction-log-decoder value-decoder-class
        verify-index-only version
    """,
    "kafka-transactions": """
        bootstrap-server broker-id command-config coordinator-epoch duration-filter
        max-transaction-timeout partition producer-epoch producer-id start-offset state topic
        transactional-id transactional-id-pattern version
    """,
    "kafka-reassign-partitions": """
        additional bootstrap-controller bootstrap-server broker-list cancel command-config
        disable-rack-aware execute generate list preserve-throttles reassignment-json-file
        replica-alter-log-dirs-throttle throttle timeout topics-to-move-json-file verify version
    """,
    "kafka-leader-election": """
        admin.config all-topic-partitions bootstrap-controller bootstrap-server election-type partition
        path-to-json-file topic version
    """,
}
KCAT = {"consume": "CbtpoecfJZGXFLQDsrqu", "produce": "PbtpKkHzZXFDlTc"}
NOUNS = {
    "kafka-topics": "topics",
    "kafka-consumer-groups": "groups",
    "kafka-transactions": "transactions",
    "kafka-get-offsets": "offsets",
}
VERBS = {"create", "list", "describe", "alter", "delete", "delete-offsets", "reset-offsets"}


def options_of(name: str) -> set[str]:
    """Those of a command, or of all the verbs of a noun."""
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    of_verbs: list[click.Command] = [command]
    if isinstance(command, click.Group):
        context = click.Context(command)
        found = [command.get_command(context, verb) for verb in command.list_commands(context)]
        of_verbs = [verb for verb in found if verb is not None]
    return {option for verb in of_verbs for parameter in verb.params for option in parameter.opts}


@pytest.mark.parametrize("tool", sorted(OPTIONS))
def test_every_option_of_a_tool_is_served_or_explained(tool: str) -> None:
    served = options_of(NOUNS.get(tool, tool))
    asked = {f"--{name}" for name in OPTIONS[tool].split() if tool not in NOUNS or name not in VERBS}
    assert {option for option in asked - served if explanation(tool, option) is None} == set()


@pytest.mark.parametrize("command", sorted(KCAT))
def test_so_is_every_flag_of_kcat(command: str) -> None:
    missing = {f"-{letter}" for letter in KCAT[command]} - options_of(command)
    assert {option for option in missing if explanation(command, option) is None} == set()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("kafka-consumer-groups --describe --group g --members", "only a broker knows which members"),
        ("groups describe --all-groups --state", "use Kafka's own kafka-consumer-groups"),
        ("kafka-console-consumer --topic t --consumer-property group.id=g", "--group NAME"),
        ("consume --topic t --consumer-property=auto.offset.reset=latest", "-o beginning or -o end"),
        ("kafka-console-producer --topic t --producer-property acks=all", "-z CODEC"),
        ("kafka-topics --list --command-config client.properties", "leave it out"),
        ("kafka-topics --describe --topic t --topic-id x", "topics list --output json"),
        ("kafka-reassign-partitions --list --throttle 5", "nothing is copied"),
        ("kafka-transactions --bootstrap-server h:1 abort --start-offset 0", "find-hanging"),
        ("kafka-transactions forceTerminateTransaction", "abort --transactional-id ID"),
        ("consume -t t -b h:9092", "it is --bootstrap-server HOST:PORT"),
        ("kafka-delete-records --offset-json-file f", "topics alter --topic NAME --config retention.ms=MS"),
        ("kafka-acls.sh --list", "who may do what is the storage's to say"),
        ("kcat -L", "-L is `topics list`"),
    ],
)
def test_what_to_type_instead_is_told(run: Run, words: str, told: str) -> None:
    shown = run(*words.split(), exit_code=2).stderr
    assert " is not known here: " in shown
    assert told in shown


def test_other_options_are_only_unknown(run: Run) -> None:
    assert "No such option '--membrs'" in run("groups", "list", "--membrs", exit_code=2).stderr
    assert "No such option '--members'" in run("root", "describe", "--members", exit_code=2).stderr
    assert why_no_command("kafka-topics") is None


def test_transactions_take_kafkas_grammar(run: Run, root: Path) -> None:
    run("topics", "create", "--topic", "t")
    assert run("kafka-transactions", "--root", str(root), "list").stdout == "No transactional id is in use.\n"
    assert run("kafka-transactions", "find-hanging").stdout == "No transaction hangs.\n"
    assert "find-hanging" in run("kafka-transactions", "--help").stdout
    run("kafka-transactions", exit_code=2)


def test_what_changes_nothing_here_is_served(run: Run) -> None:
    run("kafka-console-producer", "--topic", "t", "--compression-codec", "zstd", stdin="one\n")
    words = ("kafka-console-consumer", "--topic", "t", "-e", "--group", "g", "--isolation-level")
    assert run(*words, "read_uncommitted").stdout == "one\n"
    run(*words, "read_everything", exit_code=2)
    assert "g      t" in run("kafka-consumer-groups", "--describe", "--group", "g", "--offsets").stdout
