"""Names of Kafka's tools and options, in one table: what is served, and what to type instead of the rest.

`sparklog kafka-topics --create --topic t` runs `sparklog topics create --topic t`: the words of a command
line are replaced before it is parsed, so that there is one grammar. Nothing is ignored: an option that means
nothing here is refused.
Sources: the tools of Kafka 4; kcat's manual.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import click


class Tool(NamedTuple):
    """Our command for each verb of a tool (for a tool without verbs: `""`), and our names of its options."""

    verbs: Mapping[str, str]
    options: Mapping[str, str] = {}


_LIST = "topics list --names --include-internal"
_DESCRIBE = "topics describe --as kafka-topics --include-internal"
_CONFIGS, _CONSUMER = "kafka-configs", "kafka-console-consumer"
_PRODUCER_PERF, _E2E = "kafka-producer-perf-test", "kafka-e2e-latency"
_ELECTION = "kafka-leader-election"
_STARTS = ("--from-beginning", "--offset", "-o", "--group", "-G", "--help", "-h")
_SERVERS = {"--broker-list": "--bootstrap-server"}
_GROUP_VERBS = ("list", "describe", "reset-offsets", "delete", "delete-offsets")
TOOLS: Mapping[str, Tool] = {
    "kafka-topics": Tool(
        {
            "--create": "topics create",
            "--list": _LIST,
            "--describe": _DESCRIBE,
            "--alter": "topics alter",
            "--delete": "topics delete",
        }
    ),
    _CONFIGS: Tool({"--describe": "topics describe", "--alter": "topics alter"}),
    "kafka-consumer-groups": Tool(
        {f"--{verb}": f"groups {verb} --as kafka-consumer-groups" for verb in _GROUP_VERBS}
    ),
    "kafka-share-groups": Tool(
        {f"--{verb}": f"groups {verb} --as kafka-share-groups" for verb in _GROUP_VERBS}
    ),
    "kafka-acls": Tool(
        {"--add": "acls add", "--list": "acls list --as kafka-acls", "--remove": "acls remove"},
        {"--force": "--yes"},
    ),
    "kafka-broker-api-versions": Tool({"": "brokers api-versions"}),
    "kafka-groups": Tool({"--list": "groups list"}),
    "kafka-delete-records": Tool({"": "records delete"}),
    "kafka-get-offsets": Tool({"": "offsets get"}, _SERVERS),
    "kafka-console-producer": Tool(
        {"": "produce"},
        _SERVERS | {"--compression-codec": "--compression", "--producer.config": "--command-config"},
    ),
    _CONSUMER: Tool({"": "consume"}, {"--consumer.config": "--command-config"}),
    "kafka-dump-log": Tool({"": "dump-log"}, {"--deep-iteration": "--deep"}),
    _PRODUCER_PERF: Tool({"": "perf produce"}),
    "kafka-consumer-perf-test": Tool({"": "perf consume"}, _SERVERS | {"--messages": "--num-records"}),
    _E2E: Tool({"": "perf e2e"}),
    "kafka-verifiable-producer": Tool({"": "verify produce"}, _SERVERS),
    "kafka-verifiable-consumer": Tool({"": "verify consume"}, _SERVERS),
    _ELECTION: Tool({"": "partitions elect"}, {"--all-topic-partitions": "--all"}),
    "kafka-reassign-partitions": Tool(
        {
            "--execute": "partitions reassign",
            "--cancel": "partitions reassign --cancel",
            "--list": "partitions list --reassigning",
        },
        {"--reassignment-json-file": "--file"},
    ),
    "kafka-transactions": Tool(
        {
            "list": "transactions list",
            "describe": "transactions describe",
            "abort": "transactions abort",
            "find-hanging": "transactions find-hanging",
        }
    ),
}
_WITH_PATTERNS = (_DESCRIBE, "topics delete", "offsets get")

_CLIENT = "there is no Kafka client to be configured: leave it out"
_OWN = "Kafka's own works with sparklog-server, as far as it serves the APIs (docs/apis.md)"
_MIRROR = "`sparklog mirror --from HOST:PORT` copies from a Kafka cluster, with --follow continuously"
INSTEAD_OF_TOOL: Mapping[str, str] = {
    "kafka-streams-groups": "`sparklog groups list`",
    "kafka-cluster": "`sparklog root describe` shows the id, `sparklog brokers unregister` forgets a broker",
    "kafka-features": "`sparklog root describe`",
    "kafka-log-dirs": "`sparklog topics describe` shows sizes",
    "kafka-metadata-quorum": "`sparklog controller describe`",
    "kafka-metadata-shell": "`sparklog metadata show` and `sparklog metadata log`",
    "zookeeper-shell": "`sparklog metadata show` and `sparklog metadata log`",
    "kafka-storage": "`sparklog topics create`, or a broker that starts, makes the root",
    "kafka-mirror-maker": _MIRROR,
    "connect-mirror-maker": _MIRROR,
    "kafka-client-metrics": _OWN,
    "kafka-jmx": "a broker's metrics are at /metrics of sparklog.http.listener (docs/metrics.md)",
    "trogdor": "`sparklog perf` measures, `sparklog verify` tests",
    "kafka-run-class": "give the name of the tool: `sparklog kafka-get-offsets`",
    "kafka-delegation-tokens": _OWN,
    "kafka-console-share-consumer": _OWN,
    "kafka-share-consumer-perf-test": _OWN,
    "kafka-verifiable-share-consumer": _OWN,
    "kafka-streams-application-reset": "`sparklog groups reset-offsets`, and `topics delete` for its topics",
    "connect-standalone": _OWN,
    "connect-distributed": _OWN,
    "kafka-server-start": "`sparklog-server --root DIR --listeners PLAINTEXT://HOST:PORT`",
    "kafka-server-stop": "send SIGTERM to sparklog-server",
    "kafka-replica-verification": "nothing is copied here: `sparklog doctor --deep` reads every record",
    "kcat": "`sparklog consume` (-C) and `sparklog produce` (-P) have its flags; -L is `topics list`",
}
INSTEAD_OF_OPTION: Mapping[str, str] = {
    "--members": "`groups describe --members` shows them",
    "--command-property": _CLIENT,
    "--verify": "`partitions list --reassigning` shows what is not done",
    "--generate": "`partitions reassign --topic NAME --brokers ID,... --dry-run` proposes",
    "--throttle": "nothing is copied here: leave it out",
    "--replica-alter-log-dirs-throttle": "nothing is copied here: leave it out",
    "--path-to-json-file": "name the partitions: --topic NAME --partition N, or all with --all",
    "--producer-props": f"{_CLIENT}; instead of bootstrap.servers: --bootstrap-server HOST:PORT, of "
    "compression.type: --compression CODEC, of batch.size: --batch-size BYTES; acks is all",
    "--producer-property": f"{_CLIENT}; instead of compression.type: --compression CODEC; acks is all",
    "--consumer-property": f"{_CLIENT}; instead of group.id: --group NAME; of auto.offset.reset: "
    "-o beginning or -o end",
    "--fetch-size": _CLIENT,
    "--socket-buffer-size": _CLIENT,
    "--request-required-acks": "a record is durable when it is acknowledged, always: leave it out",
    "--formatter": "-f FORMAT prints fields (%k %s %o ...), -J a JSON object a line",
    "--include": "it is one topic here: --topic NAME",
    "--whitelist": "it is one topic here: --topic NAME",
    "--key-deserializer": "keys and values are bytes here: --hex, or -J with base64 for what is not UTF-8",
    "--value-deserializer": "keys and values are bytes here: --hex, or -J with base64 for what is not UTF-8",
    "--zookeeper": "there is no ZooKeeper: --root DIR, or --bootstrap-server HOST:PORT",
    "-b": "it is --bootstrap-server HOST:PORT, or --root DIR without a broker",
    "--topic-id": "`topics list --output json` shows whose id it is",
    "--replica-assignment": "afterwards: `partitions reassign --topic NAME --replicas 1,2`",
    "--cluster-metadata-decoder": "`sparklog metadata log` shows that",
    "--offsets-decoder": "`sparklog groups describe --all-groups` shows that",
    "--transaction-log-decoder": "`sparklog transactions list` shows that",
    "--start-offset": "an abort ends all that a producer has open: name it, as `find-hanging` shows it",
}


def translate(args: Sequence[str]) -> list[str]:
    """The command line in our words; unchanged where the first word is not one of Kafka's tools.

    Raises:
        click.UsageError: a tool that is not served, with what to type instead; not exactly one verb.
    """
    name, *words = args
    name = name.removesuffix(".sh")
    if name in INSTEAD_OF_TOOL:
        raise click.UsageError(f"{name} is not known here: {INSTEAD_OF_TOOL[name]}.")
    tool = TOOLS.get(name)
    if tool is None:
        return list(args)
    if "--version" in words:
        return ["--version"]
    verbs = [word for word in words if word in tool.verbs] if "" not in tool.verbs else [""]
    is_help = not {"-h", "--help"}.isdisjoint(words)
    if name == _CONFIGS and is_help:
        return [next((_HELP[word] for word in words if word in _HELP), "topics"), "--help"]
    if not verbs and is_help:
        return [next(iter(tool.verbs.values())).split()[0], "--help"]
    if len(verbs) != 1:
        hints = [f"{word}: {INSTEAD_OF_OPTION[word]}" for word in words if word in INSTEAD_OF_OPTION]
        raise click.UsageError("; ".join([f"give exactly one of {', '.join(tool.verbs)}", *hints]) + ".")
    words = [word for word in words if word not in verbs]
    if name in _REWRITES:
        words = _REWRITES[name](words)
    if name == _CONFIGS:
        is_alter = verbs == ["--alter"]
        return _quota_command(words, is_alter=is_alter) or _config_command(words, is_alter=is_alter)
    command = tool.verbs[verbs[0]]
    found: list[str] = []
    for word in words:
        option, separator, value = word.partition("=")
        if found[-1:] == ["--topic"]:
            found[-1:] = _topic(command, word)
        elif option == "--topic" and separator:
            found += _topic(command, value)
        else:
            found.append(tool.options.get(option, option) + separator + value)
    if name == _CONSUMER and not any(word.startswith(_STARTS) for word in words):
        found += ["-o", "end"]  # Kafka's default; ours is the beginning
    return [*command.split(), *found]


# Properties of a producer that kafka-producer-perf-test takes, and our options; "": it holds here anyway.
_PROPERTIES = {
    "bootstrap.servers": "--bootstrap-server",
    "compression.type": "--compression",
    "batch.size": "--batch-size",
    "acks": "",
    "enable.idempotence": "",
}
_PROPERTY_OPTIONS = ("--producer-props", "--command-property")  # of the first all words up to an option


def _producer_options(words: Sequence[str]) -> list[str]:
    """The words of kafka-producer-perf-test, with our options instead of a producer's properties."""
    found: list[str] = []
    properties: list[str] = []
    option = ""
    for word in words:
        is_first = option in _PROPERTY_OPTIONS
        name, separator, value = word.partition("=")
        if name in _PROPERTY_OPTIONS:
            option = name
            properties += [value] if separator else []
        elif is_first and not word.startswith("-"):
            properties.append(word)
            option = option if option == _PROPERTY_OPTIONS[0] else ""
        else:
            option = ""
            found.append(word)
    for entry in properties:
        key, _, value = entry.partition("=")
        if key not in _PROPERTIES:
            known = ", ".join(_PROPERTIES)
            raise click.UsageError(f"producer property {key!r}: {_CLIENT}; {known} are known here.")
        if _PROPERTIES[key]:
            found += [_PROPERTIES[key], value]
    return found


def _e2e_options(words: Sequence[str]) -> list[str]:
    """The words of kafka-e2e-latency: `broker topic messages acks bytes`, or options; acks is all here."""
    positional = [word for word in words if not word.startswith("-")]
    if len(positional) == len(words) and words:
        if len(words) != 5:
            raise click.UsageError(
                "give BROKER TOPIC RECORDS ACKS BYTES, or --topic NAME --num-records N --record-size BYTES; "
                "a file of properties has no meaning here."
            )
        servers, topic, records, _acks, size = words
        names = ("--bootstrap-server", "--topic", "--num-records", "--record-size")
        given = zip(names, (servers, topic, records, size), strict=True)
        return [word for pair in given for word in pair]
    return list(words)


def _election_options(words: Sequence[str]) -> list[str]:
    """The words of kafka-leader-election, with our options for the type of the election."""
    kinds = {"preferred": "--preferred", "unclean": "--offline"}
    found: list[str] = []
    left = iter(words)
    for word in left:
        option, separator, value = word.partition("=")
        if option == "--election-type":
            kind = (value if separator else next(left, "")).lower()
            if kind not in kinds:
                raise click.UsageError(f"--election-type: found {kind!r}, expected preferred or unclean.")
            found.append(kinds[kind])
        else:
            found.append(word)
    return found


_REWRITES = {_PRODUCER_PERF: _producer_options, _E2E: _e2e_options, _ELECTION: _election_options}

# kafka-configs: what it describes or alters, a broker's number or a topic, decides on our command.
_ENTITIES = {"--topic": "topics", "--broker": "brokers", "--broker-defaults": "brokers", "--group": "groups"}
_VALUED = (
    "--topic",
    "--broker",
    "--group",
    "--entity-type",
    "--entity-name",
    "--add-config",
    "--delete-config",
)
_NO_ENTITIES = (
    "it is --entity-type topics, brokers, groups, users, clients or ips here: there are no client metrics"
)
_ONE_BROKER = "only a running broker can check its settings: use Kafka's own tool"
_ITEMS = re.compile(r",(?![^\[]*\])")  # commas outside of brackets


def _config_command(words: Sequence[str], *, is_alter: bool) -> list[str]:
    """The command of ours for the words of kafka-configs without its verb."""
    given: dict[str, str] = {}
    rest: list[str] = []
    left = iter(words)
    for word in left:
        option, separator, value = word.partition("=")
        if option in _VALUED:
            given[option] = value if separator else next(left, "")
        elif option in {"--entity-default", "--broker-defaults"}:
            given[option] = ""
        else:
            rest.append(word)
    kinds = [_ENTITIES[option] for option in given if option in _ENTITIES]
    kind = given.get("--entity-type", kinds[0] if kinds else "")
    name = given.get("--entity-name") or given.get("--topic") or given.get("--broker")
    name = name or given.get("--group")
    changes = [part for item in _items(given, "--add-config") for part in ("--config", item)]
    changes += [part for item in _items(given, "--delete-config") for part in ("--delete-config", item)]
    match kind, is_alter:
        case "topics", True if name:
            return ["topics", "alter", "--as", _CONFIGS, "--topic", name, *changes, *rest]
        case "topics", False:
            named = ["--topic", name] if name else ["--include-internal"]
            return ["topics", "describe", "--as", _CONFIGS, *named, *rest]
        case "groups", True if name:
            return ["groups", "alter", "--group", name, *changes, *rest]
        case "groups", False:
            named = ["--group", name] if name else ["--all-groups"]
            return ["groups", "describe", "--settings", "--as", _CONFIGS, *named, *rest]
        case "brokers", _ if not name:
            return ["root", "alter" if is_alter else "describe", *changes, *rest]
        case "brokers", False:
            return ["brokers", "describe", str(name), *rest]
    if kind in {"topics", "groups"}:
        raise click.UsageError(f"give --entity-name {kind.removesuffix('s').upper()}.")
    raise click.UsageError(f"{_CONFIGS}: {_ONE_BROKER if kind == 'brokers' else _NO_ENTITIES}.")


# By what is named, the commands whose help is shown; else it is that of topics.
_HELP = {
    **dict.fromkeys(("brokers", "--broker", "--broker-defaults"), "root"),
    **dict.fromkeys(("groups", "--group"), "groups"),
    **dict.fromkeys(("users", "clients", "ips", "--user", "--client", "--ip"), "quotas"),
}

# The entity types of quotas, and our options for their names.
_QUOTA_ENTITIES = {"users": "--user", "clients": "--client-id", "ips": "--ip"}
_QUOTA_NAMES = {"--user": "--user", "--client": "--client-id", "--ip": "--ip"}
_QUOTA_DEFAULTS = ("--user-defaults", "--client-defaults", "--ip-defaults")


def _quota_command(words: Sequence[str], *, is_alter: bool) -> list[str] | None:
    """The command of ours for the words of kafka-configs about quotas; None: about something else."""
    entity: list[str] = []
    rest: list[str] = []
    given: dict[str, str] = {}
    kind = ""
    left = iter(words)
    for word in left:
        option, separator, value = word.partition("=")
        if option in _QUOTA_DEFAULTS:
            entity.append(option)
            continue
        if option == "--entity-default":
            entity.append(f"{_QUOTA_ENTITIES.get(kind, '').removesuffix('-id')}-defaults")
            continue
        if option not in {*_VALUED, *_QUOTA_NAMES}:
            rest.append(word)
            continue
        value = value if separator else next(left, "")
        if option == "--entity-type":
            kind = value
            if kind not in _QUOTA_ENTITIES:
                return None
        elif option == "--entity-name" and kind:
            entity += [_QUOTA_ENTITIES[kind], value]
        elif option in _QUOTA_NAMES:
            entity += [_QUOTA_NAMES[option], value]
        else:
            given[option] = value
    if not entity and not kind:
        return None
    if not is_alter:
        return ["quotas", "list", "--as", _CONFIGS, *rest]
    changes = [part for item in _items(given, "--add-config") for part in ("--quota", item)]
    changes += [part for item in _items(given, "--delete-config") for part in ("--delete-quota", item)]
    return ["quotas", "alter", *entity, *changes, *rest]


def _items(given: Mapping[str, str], option: str) -> list[str]:
    """`a=1,b=[x,y]` as `a=1` and `b=x,y`."""
    found = [item.strip() for item in _ITEMS.split(given.get(option, "")) if item.strip()]
    return [re.sub(r"=\[(.*)\]$", r"=\1", item) for item in found]


def _topic(command: str, text: str) -> list[str]:
    """`--topic k.*` as `--pattern k.*`, where Kafka's tools take a regular expression; a name stays one."""
    from sparklog.metadata import why_illegal_topic_name

    is_pattern = why_illegal_topic_name(text) is not None
    if command in _WITH_PATTERNS and is_pattern:
        return ["--pattern", text]
    if command == _LIST:
        return ["--pattern", text if is_pattern else text.replace(".", r"\.")]
    return ["--topic", text]


def in_our_words(error: click.ClickException) -> click.ClickException:
    """The same error; for an option of Kafka's, one that names ours."""
    if not isinstance(error, click.NoSuchOption) or error.option_name not in INSTEAD_OF_OPTION:
        return error
    why = INSTEAD_OF_OPTION[error.option_name]
    return click.UsageError(f"{error.option_name} is not known here: {why}.", ctx=error.ctx)
