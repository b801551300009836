"""`sparklog brokers api-versions`: which APIs of Kafka's protocol brokers serve.

The format is kafka-broker-api-versions'. It asks the brokers, and opens no root: any broker that speaks
Kafka's protocol in the clear will do.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from sparklog.cli.framework import Command, current
from sparklog.cli.output import Document, show_json, tell
from sparklog.errors import RetriableError

if TYPE_CHECKING:
    from sparklog.client.brokers import Address

TIMEOUT_S = 10.0
API_VERSIONS = 18
NAMES = tuple(
    """
    Produce Fetch ListOffsets Metadata LeaderAndIsr StopReplica UpdateMetadata ControlledShutdown
    OffsetCommit OffsetFetch FindCoordinator JoinGroup Heartbeat LeaveGroup SyncGroup DescribeGroups
    ListGroups SaslHandshake ApiVersions CreateTopics DeleteTopics DeleteRecords InitProducerId
    OffsetForLeaderEpoch AddPartitionsToTxn AddOffsetsToTxn EndTxn WriteTxnMarkers TxnOffsetCommit
    DescribeAcls CreateAcls DeleteAcls DescribeConfigs AlterConfigs AlterReplicaLogDirs DescribeLogDirs
    SaslAuthenticate CreatePartitions CreateDelegationToken RenewDelegationToken ExpireDelegationToken
    DescribeDelegationToken DeleteGroups ElectLeaders IncrementalAlterConfigs AlterPartitionReassignments
    ListPartitionReassignments OffsetDelete DescribeClientQuotas AlterClientQuotas
    DescribeUserScramCredentials AlterUserScramCredentials Vote BeginQuorumEpoch EndQuorumEpoch
    DescribeQuorum AlterPartition UpdateFeatures Envelope FetchSnapshot DescribeCluster DescribeProducers
    BrokerRegistration BrokerHeartbeat UnregisterBroker DescribeTransactions ListTransactions
    AllocateProducerIds ConsumerGroupHeartbeat ConsumerGroupDescribe ControllerRegistration
    GetTelemetrySubscriptions PushTelemetry AssignReplicasToDirs ListConfigResources
    DescribeTopicPartitions ShareGroupHeartbeat ShareGroupDescribe ShareFetch ShareAcknowledge
    AddRaftVoter RemoveRaftVoter UpdateRaftVoter InitializeShareGroupState ReadShareGroupState
    WriteShareGroupState DeleteShareGroupState ReadShareGroupStateSummary StreamsGroupHeartbeat
    StreamsGroupDescribe DescribeShareGroupOffsets AlterShareGroupOffsets DeleteShareGroupOffsets
    """.split()  # noqa: SIM905 - a list would take 93 lines
)  # by API key


@click.command("api-versions", cls=Command)
def api_versions() -> None:
    """Show which versions of which APIs each broker of --bootstrap-server's cluster serves."""
    servers = current().bootstrap_server
    if servers is None:
        raise click.UsageError("name a broker with --bootstrap-server HOST:PORT.")
    rows = [_ask(node_id, address) for node_id, address in sorted(_find_brokers(servers).items())]
    if current().json:
        show_json(rows)
        return
    for row in rows:
        tell(f"{row['address']} (id: {row['id']}) -> (")
        apis = row["apis"]
        assert isinstance(apis, list)
        for api in apis:
            least, most = api["min_version"], api["max_version"]
            versions = str(least) if least == most else f"{least} to {most}"
            tell("", f"{api['name']}({api['key']}): {versions}" + ("," if api is not apis[-1] else ""))
        tell(")")


def _find_brokers(servers: str) -> dict[int, Address]:
    """The brokers of the cluster, by id, of which a bootstrap server knows.

    Raises:
        RetriableError: BROKER_UNREACHABLE, none answered.
    """
    from sparklog.client.brokers import (
        METADATA,
        METADATA_VERSION,
        NO_TOPICS,
        BrokerConnection,
        NotKafkaError,
        parse_servers,
        read_cluster,
    )

    problems = []
    for server, address in parse_servers(servers):
        try:
            with BrokerConnection(address, time.monotonic() + TIMEOUT_S) as connection:
                return read_cluster(connection.ask(METADATA, METADATA_VERSION, NO_TOPICS)).addresses
        except (OSError, NotKafkaError) as error:
            problems.append(f"{server}: {error}")
    raise _unreachable("; ".join(problems))


def _ask(node_id: int, address: Address) -> Document:
    from sparklog.client.brokers import BrokerConnection, NotKafkaError, read_served

    shown = f"{address[0]}:{address[1]}"
    try:
        with BrokerConnection(address, time.monotonic() + TIMEOUT_S) as connection:
            served = read_served(connection.ask(API_VERSIONS, 0, b""))
    except (OSError, NotKafkaError) as error:
        raise _unreachable(f"broker {node_id} at {shown}: {error}") from None
    apis = [
        {
            "name": NAMES[key] if 0 <= key < len(NAMES) else "UNKNOWN",
            "key": key,
            "min_version": versions.start,
            "max_version": versions.stop - 1,
        }
        for key, versions in sorted(served.items())
    ]
    return {"id": node_id, "address": shown, "apis": apis}


def _unreachable(problem: str) -> RetriableError:
    return RetriableError(
        "BROKER_UNREACHABLE", f"no answer ({problem})", fix="check the address, and that a broker runs there"
    )
