"""The root behind a broker: asks a bootstrap server where its log is, so that we can go there ourselves.

Two requests over one connection: Metadata v2 for the cluster id, DescribeLogDirs v1 for the directory.
A sparklog broker answers with one URL (file:///data/log); Apache Kafka with plain paths, of use to
nobody but itself.
Whoever answers at the address chooses what this process opens next, with the credentials that it has. So the
place is judged by rules (storage/root_rules.py) before anything of it is looked at.
Invariants: what is returned is a root that this machine sees, and it is the broker's: the cluster id in
    its meta.properties is the one that the broker told. Every wait and every answer's size is bounded.
Not here: the connection (broker_connection.py), what the answers' bytes say (broker_answers.py); reading and
    writing of records, which go to the storage.
Concurrency: no state; any thread or process.
Sources: Kafka's MetadataRequest v2, DescribeLogDirsRequest v1 (requests with header v1, responses v0).
"""

import dataclasses
import os
import time

from sparklog.client.broker_answers import (
    METADATA,
    METADATA_VERSION,
    NO_TOPICS,
    NotKafkaError,
    read_cluster,
    read_log_dirs,
)
from sparklog.client.broker_connection import BrokerConnection, parse_servers
from sparklog.errors import (
    CorruptLogError,
    InvalidRequestError,
    NotFoundError,
    RetriableError,
    SparklogError,
)
from sparklog.metadata.documents.properties import META_PROPERTIES, decode_properties
from sparklog.redaction import shown, without_user_info
from sparklog.storage import open_store
from sparklog.storage.filesystems import OPTION as ALLOW_UNSAFE
from sparklog.storage.root_rules import RootRules, root_rules

DEFAULT_TIMEOUT_MS = 10_000
_DESCRIBE_LOG_DIRS, _DESCRIBE_LOG_DIRS_VERSION = 35, 1
_MAX_QUOTED = 500


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRoot:
    """Where a broker's log is."""

    root: str  # a URL that sparklog.open takes
    cluster_id: str
    server: str  # the host:port that answered


def find_broker_root(
    bootstrap_servers: str, *, timeout_ms: int = DEFAULT_TIMEOUT_MS, rules: RootRules | None = None
) -> BrokerRoot:
    """Ask the bootstrap servers, one after the other, until one answers.

    Args:
        bootstrap_servers: host:port, several separated by commas, as Kafka clients take it.
        timeout_ms: for each server: connecting and both answers.
        rules: where the root may be, and which it is; None: those of the environment.

    Raises:
        InvalidRequestError: INVALID_OPTION, not host:port; NOT_A_SPARKLOG_BROKER; ROOT_NOT_VISIBLE, this
            machine does not see the broker's root (or another root in its place); WRONG_ROOT and
            ROOT_NOT_ALLOWED by the rules, whereupon no other server is asked.
        RetriableError: BROKER_UNREACHABLE, nobody answered.
    """
    rules = root_rules(None, None, os.environ) if rules is None else rules
    failures = []
    for server, address in parse_servers(bootstrap_servers):
        try:
            cluster_id, log_dirs = _ask(address, time.monotonic() + timeout_ms / 1000)
        except NotKafkaError as error:
            failures.append(f"{without_user_info(server)}: {error}")
        except OSError as error:
            failures.append(f"{without_user_info(server)}: {error.strerror or error or type(error).__name__}")
        else:
            found = BrokerRoot(
                root=_root_of(server, log_dirs), cluster_id=_known(server, cluster_id), server=server
            )
            rules.validate_cluster_id(found.cluster_id, f"broker {server}")
            rules.validate_place(found.root)
            _validate_visible(found)
            return found
    raise RetriableError(
        "BROKER_UNREACHABLE",
        f"no bootstrap server answered ({'; '.join(failures)})",
        fix="check the addresses and that sparklog-server runs, or name the root itself: option path, --root",
    )


def _ask(address: tuple[str, int], deadline: float) -> tuple[str | None, list[str]]:
    """The cluster id and the log directories that one server tells."""
    with BrokerConnection(address, deadline) as connection:
        metadata = connection.ask(METADATA, METADATA_VERSION, NO_TOPICS)
        cluster_id = read_cluster(metadata).cluster_id
        log_dirs = connection.ask(_DESCRIBE_LOG_DIRS, _DESCRIBE_LOG_DIRS_VERSION, NO_TOPICS)
        return cluster_id, read_log_dirs(log_dirs)


def _root_of(server: str, log_dirs: list[str]) -> str:
    if len(log_dirs) == 1 and "://" in log_dirs[0]:
        return log_dirs[0]
    if not log_dirs:
        raise InvalidRequestError(
            "NOT_A_SPARKLOG_BROKER",
            f"{server} tells no log directory: it is a Kafka broker that does not let us ask",
            fix='give the root as option path or --root; for Apache Kafka use format("kafka")',
        )
    raise InvalidRequestError(
        "NOT_A_SPARKLOG_BROKER",
        f"{server} keeps its log in {_few(log_dirs)}, which is no root of sparklog: "
        "it is Apache Kafka or something else that speaks its protocol",
        fix='name a sparklog broker; for Apache Kafka use format("kafka")',
    )


def _few(log_dirs: list[str]) -> str:
    """Quoted, and no more of them than a message can hold: a stranger wrote them."""
    more = f" and {len(log_dirs) - 3} more" if len(log_dirs) > 3 else ""
    return ", ".join(shown("log.dirs", one) for one in log_dirs[:3]) + more


def _known(server: str, cluster_id: str | None) -> str:
    if cluster_id is None:
        raise InvalidRequestError(
            "NOT_A_SPARKLOG_BROKER", f"{server} tells no cluster id", fix="name a sparklog broker"
        )
    return cluster_id


def _validate_visible(found: BrokerRoot) -> None:
    where = f"{found.root}/{META_PROPERTIES}"
    try:
        # Only looked at here; who opens the log on it asks what its file system promises.
        options = {ALLOW_UNSAFE: True} if found.root.startswith("file:") else None
        store = open_store(found.root, storage_options=options)
        here = decode_properties(store.read(META_PROPERTIES, 0, 4096), where)
    except (NotFoundError, CorruptLogError) as error:
        raise _not_visible(found, f"this machine does not see it ({_first_line(error)})") from error
    except OSError as error:  # a path that is none to the system: too long, or through what we may not enter
        reason = error.strerror or type(error).__name__
        raise _not_visible(found, f"this machine does not see it ({reason})") from None
    if here != found.cluster_id:
        raise _not_visible(
            found, f"what this machine sees there is another log: cluster {here}, not {found.cluster_id}"
        )


def _not_visible(found: BrokerRoot, problem: str) -> InvalidRequestError:
    return InvalidRequestError(
        "ROOT_NOT_VISIBLE",
        f"the broker {found.server} has its log at {shown('root', found.root)}, and {problem}",
        fix="mount the broker's storage here, and on every executor, under the same path; where the path "
        "differs, name it: option path, --root",
    )


def _first_line(error: SparklogError) -> str:
    return str(error).splitlines()[0][:_MAX_QUOTED]
