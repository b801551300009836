"""Words of Kafka's tools that mean nothing here, and what to type instead.

Invariants: every option of a tool whose name we have is an option here or is explained; a test has Kafka's
    lists. Nothing is passed over in silence: who sets `acks` is told that it is always so.
Not here: what is served under Kafka's names (kafka_tools.py, kafka_tools.py, kafka_tools.py).
Sources: the options of Kafka 4's tools, and of those before that are still typed; kcat's manual.
"""

from __future__ import annotations

from collections.abc import Mapping

import click

Words = Mapping[str, str]
_OWN_TOOL = "start sparklog-server, and use Kafka's own"
_NO_CLIENT = "no client of Kafka is at work that it would configure: leave it out"
_NOTHING_COPIED = "nothing is copied, so nothing is throttled: leave it out"
_NO_WAITING = "it is not for a broker that is waited: leave it out"
_ACKNOWLEDGED = "a bundle of lines is durable before the next one is read, always: leave it out"
_BUNDLES = "lines are appended in bundles as they come, each at once: leave it out"
_MEMBERS = f"only a broker knows which members a group has: {_OWN_TOOL} kafka-consumer-groups"
_RESETS = f"it belongs to --reset-offsets, for which {_OWN_TOOL} kafka-consumer-groups"
_OTHER_ENTITY = f"only topics and the root have settings here; for others {_OWN_TOOL} kafka-configs"
_AS_BYTES = "keys and values are bytes here: text as it is, JSON with base64 for what is not UTF-8"
_OWN_COMMAND = "a command of its own shows that"
_ABORTED_WHOLE = (
    "an abort ends all that a producer has open: name it, as `transactions find-hanging` shows it"
)

_EVERYWHERE: Words = {
    "--command-config": _NO_CLIENT,
    "--bootstrap-controller": "any broker will do: --bootstrap-server HOST:PORT, or --root DIR without one",
    "--zookeeper": "there is no ZooKeeper: --root DIR, or --bootstrap-server HOST:PORT",
    "--version": "`sparklog --version` shows it",
    "-b": "it is --bootstrap-server HOST:PORT, or --root DIR without a broker",
    "-X": _NO_CLIENT,
    "-F": _NO_CLIENT,
}
_BY_TOOL: Mapping[str, Words] = {
    "kafka-topics": {
        "--topic-id": "topics have names here: `topics list --output json` shows whose id it is",
        "--replica-assignment": "afterwards it is `partitions reassign --topic NAME --replicas 1,2`",
        "--topics-with-overrides": "`topics describe` shows the Configs of each topic, in its first line",
        "--under-min-isr-partitions": "no write waits for replicas here: --under-replicated-partitions",
        "--at-min-isr-partitions": "no write waits for replicas here: --under-replicated-partitions",
        "--partition-size-limit-per-response": "an answer has no limit here: leave it out",
        "--if-exists": "it goes with --delete: a topic that is altered or described has to be there",
        "--if-not-exists": "it goes with --create",
        "--replication-factor": "it goes with --create; later `partitions reassign` changes it",
        "--config": "it goes with --create and --alter",
        "--delete-config": "it goes with --alter",
        "--partitions": "it goes with --create and --alter",
        "--force": "nothing is asked without a terminal, and --yes asks nothing: leave it out",
        "--disable-rack-aware": "racks never hinder a topic here: leave it out",
    },
    "kafka-consumer-groups": {
        "--members": _MEMBERS,
        "--state": _MEMBERS,
        "--verbose": _MEMBERS,
        "--type": "there are classic groups only: leave it out",
        "--validate-regex": "groups subscribe to names: leave it out",
        "--timeout": _NO_WAITING,
        "--topic": "all topics of a group are shown: `--output json`, and jq, choose",
        "--all-topics": "all topics of a group are shown: leave it out",
        **dict.fromkeys(
            (
                "--execute",
                "--dry-run",
                "--export",
                "--from-file",
                "--by-duration",
                "--shift-by",
                "--to-current",
                "--to-datetime",
                "--to-earliest",
                "--to-latest",
                "--to-offset",
            ),
            _RESETS,
        ),
    },
    "kafka-console-consumer": {
        **dict.fromkeys(
            ("--consumer-property", "--command-property", "--consumer.config", "--consumer-config"),
            "no client of Kafka is at work that it would configure. Instead of group.id: --group NAME; of "
            "auto.offset.reset: -o beginning or -o end; of max.poll.records: nothing",
        ),
        "--formatter": "-f FORMAT prints what it says (%k %s %o ...), -J a JSON object a line",
        "--formatter-config": "-f FORMAT prints what it says (%k %s %o ...), -J a JSON object a line",
        "--include": "it is one topic here: --topic NAME",
        "--whitelist": "it is one topic here: --topic NAME",
        "--blacklist": "it is one topic here: --topic NAME",
        "--key-deserializer": _AS_BYTES,
        "--value-deserializer": _AS_BYTES,
        "--skip-message-on-error": "bytes can always be printed: leave it out",
        "--enable-systest-events": "leave it out",
        "--new-consumer": "leave it out",
        "-L": "`sparklog topics list`, and `sparklog brokers list`, show it",
        "-Q": "`sparklog offsets get --time MS` shows it",
        "-D": "it is part of the format: -f '%s;'",
        "-s": "records are bytes here: -J has base64 for what is not UTF-8",
        "-r": "no registry of schemas is asked: -J has base64 for what is not UTF-8",
        "-q": "only records go to stdout, and stderr can be sent away: leave it out",
        "-u": "stdout is flushed whenever the log has nothing more: leave it out",
    },
    "kafka-console-producer": {
        **dict.fromkeys(
            ("--producer-property", "--command-property", "--producer.config", "--producer-config"),
            "no client of Kafka is at work that it would configure. Instead of compression.type: -z CODEC; "
            "acks=all is always so",
        ),
        "--line-reader": "lines are read: -K TEXT splits them into key and value, -H adds headers",
        "--reader-config": "each property by itself: --reader-property parse.key=true",
        **dict.fromkeys(("--request-required-acks", "--sync", "--request-timeout-ms"), _ACKNOWLEDGED),
        **dict.fromkeys(
            (
                "--batch-size",
                "--timeout",
                "--max-block-ms",
                "--max-memory-bytes",
                "--max-partition-memory-bytes",
                "--message-send-max-retries",
                "--metadata-expiry-ms",
                "--retry-backoff-ms",
                "--socket-buffer-size",
            ),
            _BUNDLES,
        ),
        "-P": "`produce` does that: leave it out",
        "-D": "records are lines",
        "-l": "lines are read from stdin: < FILE",
        "-T": "tee(1) does that: tee FILE | sparklog produce ...",
        "-c": "head(1) does that: head -n N | sparklog produce ...",
    },
    "kafka-get-offsets": {
        "--offsets": "one offset a partition is shown: leave it out",
        "--max-wait-ms": _NO_WAITING,
    },
    "kafka-configs": {
        "--add-config-file": "settings stand on the command line: --add-config KEY=VALUE,...",
        "--force": "nothing is asked: leave it out",
        "--if-exists": "a topic that is altered or described has to be there: leave it out",
        "--zk-tls-config-file": "there is no ZooKeeper: leave it out",
        **dict.fromkeys(
            (
                "--broker",
                "--broker-logger",
                "--client",
                "--client-defaults",
                "--client-metrics",
                "--group",
                "--ip",
                "--ip-defaults",
                "--user",
                "--user-defaults",
            ),
            _OTHER_ENTITY,
        ),
    },
    "kafka-dump-log": {
        "--cluster-metadata-decoder": f"{_OWN_COMMAND}: `sparklog metadata log`",
        "--offsets-decoder": f"{_OWN_COMMAND}: `sparklog groups describe --all-groups`",
        "--transaction-log-decoder": f"{_OWN_COMMAND}: `sparklog transactions list`",
        "--share-group-state-decoder": "there are no share groups: leave it out",
        "--remote-log-metadata-decoder": "there is no tier of old segments: leave it out",
        "--key-decoder-class": _AS_BYTES,
        "--value-decoder-class": _AS_BYTES,
        "--index-sanity-check": "`sparklog doctor --deep` reads and checks every record of a root",
        "--verify-index-only": "`sparklog doctor --deep` reads and checks every record of a root",
        "--max-message-size": "a batch may have any size: leave it out",
        "--max-bytes": "head(1) does that: | head",
        "--skip-record-metadata": "--output json, and jq, choose",
    },
    "kafka-reassign-partitions": {
        "--throttle": _NOTHING_COPIED,
        "--replica-alter-log-dirs-throttle": _NOTHING_COPIED,
        "--preserve-throttles": _NOTHING_COPIED,
        "--additional": "what is under way for other partitions goes on, always: leave it out",
        "--timeout": _NO_WAITING,
    },
    "kafka-leader-election": {"--admin.config": _NO_CLIENT},
    "kafka-transactions": {
        "--topic": _ABORTED_WHOLE,
        "--partition": f"{_ABORTED_WHOLE}; find-hanging takes --topic NAME",
        "--start-offset": _ABORTED_WHOLE,
        "--producer-epoch": "the newest epoch is meant, always: leave it out",
        "--coordinator-epoch": "there is none here: leave it out",
        "--broker-id": "all partitions are looked at, whoever leads them: leave it out",
    },
}
_TOOLS: Mapping[str, tuple[str, ...]] = {
    "topics": ("kafka-topics",),
    "groups": ("kafka-consumer-groups",),
    "consume": ("kafka-console-consumer",),
    "produce": ("kafka-console-producer",),
    "offsets": ("kafka-get-offsets",),
    "partitions": ("kafka-reassign-partitions", "kafka-leader-election"),
    "transactions": ("kafka-transactions",),
    "dump-log": ("kafka-dump-log",),
}
_COMMANDS: Words = {
    "kafka-delete-records": "records go by retention: `sparklog topics alter --topic NAME --config "
    f"retention.ms=MS`, then `sparklog expire NAME`. From an offset on: {_OWN_TOOL} kafka-delete-records",
    "kafka-acls": "who may do what is the storage's to say (docs/deploy.md)",
    "kafka-delegation-tokens": "who may do what is the storage's to say (docs/deploy.md)",
    "kafka-groups": "`sparklog groups list` shows them",
    "kafka-share-groups": "there are no share groups",
    "kafka-streams-groups": "there are classic groups only: `sparklog groups list`",
    "kafka-console-share-consumer": "there are no share groups: `sparklog consume`",
    "kafka-broker-api-versions": "docs/apis.md has them; for a broker that runs, use Kafka's own tool",
    "kafka-cluster": "`sparklog root describe` shows the id, `sparklog brokers unregister` forgets a broker",
    "kafka-features": "`sparklog root describe` shows MetadataVersion",
    "kafka-log-dirs": "brokers share one root: `sparklog topics describe` shows sizes",
    "kafka-metadata-quorum": "`sparklog controller describe` shows who controls the brokers",
    "kafka-metadata-shell": "`sparklog metadata tree` and `sparklog metadata show` do that",
    "kafka-storage": "`sparklog topics create`, or a broker that starts, makes the root",
    "kafka-server-start": "it is `sparklog-server --root DIR --listeners PLAINTEXT://HOST:PORT`",
    "kafka-server-stop": "send SIGTERM to sparklog-server",
    "kafka-preferred-replica-election": "it is `sparklog partitions elect --preferred`",
    "kafka-replica-verification": "nothing is copied: `sparklog doctor --deep` reads every record",
    "kafka-streams-application-reset": f"{_OWN_TOOL} kafka-streams-application-reset",
    "kafka-mirror-maker": f"{_OWN_TOOL} MirrorMaker",
    "kafka-producer-perf-test": f"{_OWN_TOOL} kafka-producer-perf-test",
    "kafka-consumer-perf-test": f"{_OWN_TOOL} kafka-consumer-perf-test",
    "kafka-verifiable-producer": f"{_OWN_TOOL} kafka-verifiable-producer",
    "kafka-verifiable-consumer": f"{_OWN_TOOL} kafka-verifiable-consumer",
    "kafka-run-class": f"{_OWN_TOOL} kafka-run-class",
    "zookeeper-shell": "there is no ZooKeeper: `sparklog metadata tree` shows what Kafka kept in it",
    "kcat": "`sparklog consume` (for -C) and `sparklog produce` (for -P) have its flags; -L is `topics list`",
    "kafkacat": "`sparklog consume` (for -C) and `sparklog produce` (for -P) have its flags",
}


def in_our_words(error: click.ClickException) -> click.ClickException:
    """The same error; where an option is Kafka's, with what to type instead."""
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return error
    why = explanation(_command_of(error.ctx), error.option_name)
    if why is None:
        return error
    return click.UsageError(f"{error.option_name} is not known here: {why}.", ctx=error.ctx)


def explanation(command: str, option: str) -> str | None:
    """Why a command has no such option, if it is one of Kafka's.

    Args:
        command: ours, or Kafka's: `topics`, `kafka-topics`.
    """
    tools = _TOOLS.get(command, (command,) if command in _BY_TOOL else ())
    for words in (*(_BY_TOOL[tool] for tool in tools), _EVERYWHERE if tools else {}):
        if option in words:
            return words[option]
    return None


def why_no_command(name: str) -> str | None:
    """What to use instead of a tool of Kafka's that has no counterpart of its name."""
    return _COMMANDS.get(name.removesuffix(".sh"))


def _command_of(ctx: click.Context) -> str:
    """The first word after `sparklog`."""
    while ctx.parent is not None and ctx.parent.parent is not None:
        ctx = ctx.parent
    return (ctx.info_name or "").partition(" ")[0]
