"""The brokers: their APIs, their endpoints, and their cluster.

Not here: leaders of partitions (metadata.py).
"""

import functools
from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any

from sparklog.log.config import NEWEST_TRANSACTION_VERSION, TRANSACTION_VERSION_KEY
from sparklog.metadata import NO_NODE, Action, BrokerListener, Image, PartitionState
from sparklog_server.admin.changes import Outcome, RefusedError
from sparklog_server.admin.configs import invalid_request
from sparklog_server.api.registry import api, declared_apis
from sparklog_server.api.services import Services
from sparklog_server.cluster.elections import plan_unregistering
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext
from sparklog_server.protocol.metadata_response import LeaderHint, Node
from sparklog_server.protocol.responses import field, make
from sparklog_server.security.access import NOT_ASKED_FOR
from sparklog_server.settings.network import AdvertisedListener

# --- nodes -------------------------------------------------------------------------------------------
#
# Endpoints of the brokers of a root for clients, and the leader of a partition for a client that asked
# another broker.
#
# A client reaches this broker by the listener of its connection. Other brokers have registered their
# listeners in the order of their settings, which should be the same for all brokers of a root: the answer has
# their listener at the same position, or the first one if they have fewer.
#
# Invariants: as of one image; fenced brokers are listed only for clients that ask for them.
# Not here: leaders (cluster/leadership.py), the bytes (protocol/metadata_response.py).
# Concurrency: event loop only.

NOWHERE = "", -1


def nodes_of(services: Services, listener: AdvertisedListener, *, fenced: bool = False) -> list[Node]:
    """Return the brokers that clients may use, by node id; or the fenced ones."""
    image = services.root.image
    return [
        _registered(services, image, listener, node_id)
        for node_id, broker in sorted(image.brokers.items())
        if broker.is_fenced is fenced
    ]


def node_of(services: Services, listener: AdvertisedListener, node_id: int) -> Node | None:
    """Return the endpoint of a broker; None if it is not registered, or fenced."""
    image = services.root.image
    broker = image.brokers.get(node_id)
    if broker is None or broker.is_fenced:
        return None
    return _registered(services, image, listener, node_id)


def hint_of(services: Services, partition: PartitionState) -> LeaderHint:
    """Return the leader of a partition, for a client that has asked the wrong broker."""
    leader = services.leadership.leader_of(partition)
    return LeaderHint(leader.node_id, leader.epoch)


def nodes_of_leaders(
    services: Services, listener: AdvertisedListener, hints: Iterable[LeaderHint]
) -> Iterator[Node]:
    """Return the endpoints of these leaders, each once."""
    for node_id in dict.fromkeys(hint.node_id for hint in hints if hint.node_id != NO_NODE):
        node = node_of(services, listener, node_id)
        if node is not None:
            yield node


def _registered(services: Services, image: Image, listener: AdvertisedListener, node_id: int) -> Node:
    broker = image.brokers[node_id]
    rack = broker.rack or None
    if node_id == services.node_id:
        return Node(node_id, listener.host, listener.port, rack)
    own = image.brokers.get(services.node_id)
    place = 0 if own is None else _place(own.listeners, listener)
    return Node(node_id, *_address(broker.listeners, place), rack)


def _place(listeners: Sequence[BrokerListener], listener: AdvertisedListener) -> int:
    for place, one in enumerate(listeners):
        if (one.host, one.port) == (listener.host, listener.port):
            return place
    return 0


def _address(listeners: Sequence[BrokerListener], place: int) -> tuple[str, int]:
    if not listeners:
        return NOWHERE
    one = listeners[place] if place < len(listeners) else listeners[0]
    return one.host, one.port


# --- ApiVersions -------------------------------------------------------------------------------------

TRANSACTION_VERSION = "transaction.version"
GROUP_VERSION = "group.version"
SHARE_VERSION = "share.version"
NEWEST_SHARE_VERSION = 2  # with dead-letter topics


@api(ApiKey.API_VERSIONS, versions=range(6))
async def handle_api_versions(request: Any, context: RequestContext, services: Services) -> Any:
    """ApiVersions (key 18), versions 0-5.

    Does: lists exactly the APIs and versions that are registered; a request of an unknown version
        gets the list in version 0's form with UNSUPPORTED_VERSION, so that the client can retry.
        Features: transaction.version has the value of the root's sparklog.transaction.version: with 2 the
        producers of Java and franz-go use the second protocol (KIP-890); group.version 1: the consumer
        protocol (KIP-848); share.version 2: share groups (KIP-932), with dead-letter topics (KIP-1191).
        A client that says which cluster and node it means, and has reached another, gets
        REBOOTSTRAP_REQUIRED: so it finds out that another root uses the address now.
    Does not: change features (UpdateFeatures; the root's settings are changed instead); check the client's
        name and version.
    Versions: 3 flexible, client software name (KIP-482, KIP-511), features; 4 those from version 0
        (KIP-1022); 5 cluster and node that the client means (KIP-1242).
    Produce is listed from 0 although it is served from 3: librdkafka before 2.11 otherwise silently stops
        compressing (kafka #18727). A client that really sends Produce 0-2 is disconnected.

    `request` is None if its version is unknown.
    """
    types = context.types
    code = ErrorCode.unsupported_version if request is None else _reached(request, services)
    if code in {ErrorCode.invalid_request, ErrorCode.rebootstrap_required}:
        return make(types.ApiVersionsResponse, error_code=code)
    fields: dict[str, Any] = {"error_code": code, "api_keys": _listed(types)}
    if hasattr(types, "SupportedFeatureKey"):  # since version 3
        image = services.root.image
        # Of this key alone: another key with a bad value must not keep clients from connecting.
        config = services.root.root_config_of([TRANSACTION_VERSION_KEY], image)
        fields |= _features(types, config.transaction_version)
        fields["finalized_features_epoch"] = max(0, image.commit)
    return make(types.ApiVersionsResponse, **fields)


def _reached(request: Any, services: Services) -> ErrorCode:
    """Return whether the client is where it means to be."""
    cluster_id, node_id = getattr(request, "cluster_id", None), getattr(request, "node_id", -1)
    if (cluster_id is None) != (node_id == -1):
        return ErrorCode.invalid_request
    if cluster_id is None or (cluster_id, node_id) == (services.root.cluster_id, services.node_id):
        return ErrorCode.none
    return ErrorCode.rebootstrap_required


# Cached: each connection begins with this request, and most of its cost was to make the entries.


@functools.cache
def _listed(types: ModuleType) -> tuple[Any, ...]:
    """Return the entries of the APIs, in the types of one version."""
    return tuple(
        make(
            types.ApiVersion,
            api_key=entry.key,
            min_version=0 if entry.key == ApiKey.PRODUCE else entry.versions.start,
            max_version=entry.versions.stop - 1,
        )
        for entry in declared_apis().values()
    )


@functools.cache
def _features(types: ModuleType, transactions: int) -> dict[str, Any]:
    # Name, newest version, and the one in force.
    features = [
        (GROUP_VERSION, 1, 1),
        (SHARE_VERSION, NEWEST_SHARE_VERSION, NEWEST_SHARE_VERSION),
        (TRANSACTION_VERSION, NEWEST_TRANSACTION_VERSION, transactions),
    ]
    return {
        "supported_features": tuple(
            make(types.SupportedFeatureKey, name=name, min_version=1, max_version=newest)
            for name, newest, _ in features
        ),
        "finalized_features": tuple(
            make(types.FinalizedFeatureKey, name=name, min_version_level=level, max_version_level=level)
            for name, _, level in features
        ),
    }


# --- DescribeCluster ---------------------------------------------------------------------------------

_BROKERS = 1
_CONTROLLERS = 2


@api(ApiKey.DESCRIBE_CLUSTER, versions=range(3))
async def handle_describe_cluster(request: Any, context: RequestContext, services: Services) -> Any:
    """DescribeCluster (key 60), versions 0-2.

    Does: lists the brokers with their racks, on request also fenced ones; the controller, the cluster id, and
        the authorized operations.
    Does not: controller endpoints: there are none.
    Versions: 1 endpoint type (KIP-919); 2 fenced brokers (KIP-1073).
    """
    types = context.types
    endpoint_type = field(request, "endpoint_type", _BROKERS)
    if endpoint_type != _BROKERS:
        known = endpoint_type == _CONTROLLERS
        return make(
            types.DescribeClusterResponse,
            error_code=ErrorCode.mismatched_endpoint_type if known else ErrorCode.unsupported_endpoint_type,
            error_message="this is a broker" if known else f"unknown endpoint type {endpoint_type}",
            endpoint_type=endpoint_type,
        )
    await services.root.look()
    brokers = _brokers(types, nodes_of(services, context.listener), is_fenced=False)
    if field(request, "include_fenced_brokers", False):
        brokers += _brokers(types, nodes_of(services, context.listener, fenced=True), is_fenced=True)
    asked_for = request.include_cluster_authorized_operations
    return make(
        types.DescribeClusterResponse,
        error_code=ErrorCode.none,
        endpoint_type=_BROKERS,
        cluster_id=services.root.cluster_id,
        cluster_authorized_operations=(
            services.access.caller(context).visible_cluster_operations() if asked_for else NOT_ASKED_FOR
        ),
        controller_id=services.leadership.controller_id,
        brokers=sorted(brokers, key=lambda one: int(one.broker_id)),
    )


def _brokers(types: Any, nodes: Iterable[Node], *, is_fenced: bool) -> list[Any]:
    return [
        make(
            types.DescribeClusterBroker,
            broker_id=node.node_id,
            host=node.host,
            port=node.port,
            rack=node.rack,
            is_fenced=is_fenced,
        )
        for node in nodes
    ]


# --- DescribeQuorum ----------------------------------------------------------------------------------

METADATA_TOPIC = "__cluster_metadata"
LISTENER_NAME = "PLAINTEXT"  # the protocol; names of listeners are local to brokers
UNKNOWN = -1


@api(ApiKey.DESCRIBE_QUORUM, versions=range(3))
async def handle_describe_quorum(request: Any, context: RequestContext, services: Services) -> Any:
    """DescribeQuorum (key 55), versions 0-2.

    Does: describes the metadata log in Kafka's terms for __cluster_metadata-0. Its leader
        is the controller, its leader epoch the controller's, and its high watermark the number of the next
        commit. Its voters are the registered brokers: each of them publishes commits, and reads all.
    Does not: replicate: there is one log, on shared storage, so no broker lags behind. Brokers do not know
        how far others have read: only the controller has a caught-up time, and the log end of a fenced broker
        is -1 (unknown). Directory ids are zero: no broker
        has a directory of its own.
    Versions: 1 times; 2 directory ids, endpoints of the nodes, error messages (KIP-853).
    Sources: Kafka KafkaRaftClient.handleDescribeQuorumRequest; MetadataQuorumCommand, for its use.
    """
    await services.root.look()
    types = context.types
    asked = {(topic.topic_name, one.partition_index) for topic in request.topics for one in topic.partitions}
    if asked != {(METADATA_TOPIC, 0)}:
        return _refused(types, request)
    partition = make(types.PartitionData, partition_index=0, **_quorum(types, services))
    nodes: dict[str, Any] = {}
    if hasattr(types, "Node"):
        nodes["nodes"] = [
            make(
                types.Node,
                node_id=node.node_id,
                listeners=[make(types.Listener, name=LISTENER_NAME, host=node.host, port=node.port)],
            )
            for node in nodes_of(services, context.listener)
        ]
    return make(
        types.DescribeQuorumResponse,
        error_code=ErrorCode.none,
        topics=[make(types.TopicData, topic_name=METADATA_TOPIC, partitions=[partition])],
        **nodes,
    )


def _quorum(types: Any, services: Services) -> dict[str, Any]:
    image = services.root.image
    leader, epoch = image.controller.node_id, image.controller.controller_epoch
    if leader == NO_NODE:
        return {
            "error_code": ErrorCode.leader_not_available,
            "error_message": "there is no controller at this moment",
            "leader_id": leader,
            "leader_epoch": epoch,
            "high_watermark": UNKNOWN,
        }
    end = image.commit + 1
    ends = {node_id: UNKNOWN if one.is_fenced else end for node_id, one in sorted(image.brokers.items())}
    others = {node_id: offset for node_id, offset in ends.items() if node_id != leader}
    return {
        "error_code": ErrorCode.none,
        "leader_id": leader,
        "leader_epoch": epoch,
        "high_watermark": end,
        "current_voters": [
            make(
                types.ReplicaState,
                replica_id=leader,
                log_end_offset=end,
                last_caught_up_timestamp=services.clock.now_ms(),
            ),
            *(
                make(types.ReplicaState, replica_id=node_id, log_end_offset=offset)
                for node_id, offset in others.items()
            ),
        ],
    }


def _refused(types: Any, request: Any) -> Any:
    topics = [
        make(
            types.TopicData,
            topic_name=topic.topic_name,
            partitions=[
                make(
                    types.PartitionData,
                    partition_index=one.partition_index,
                    error_code=ErrorCode.unknown_topic_or_partition,
                )
                for one in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return make(types.DescribeQuorumResponse, error_code=ErrorCode.none, topics=topics)


# --- UnregisterBroker --------------------------------------------------------------------------------


@api(ApiKey.UNREGISTER_BROKER, versions=range(1))
async def handle_unregister_broker(request: Any, context: RequestContext, services: Services) -> Any:
    """UnregisterBroker (key 64), version 0.

    Does: remove a broker that will not return; others replace it as replicas, in the same commit. Any broker
        does it, on behalf of the controller: Kafka's admin client sends it to any broker, and fails on
        NOT_CONTROLLER.
    Does not: stop a broker: a running one is refused (INVALID_REQUEST), since it would register again
        immediately.
    Versions: 0 (KIP-500).
    """
    unregistering = _Unregistering(request.broker_id)
    outcomes: dict[int, Outcome] = await services.changes.make(
        {request.broker_id: unregistering.validate},
        completing=unregistering.plan,
        fenced=ErrorCode.request_timed_out,  # the client retries, possibly at another broker
    )
    outcome = outcomes[request.broker_id]
    return make(
        context.types.UnregisterBrokerResponse, error_code=outcome.code, error_message=outcome.message
    )


class _Unregistering:
    """The change that unregisters a broker, of several actions."""

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self._is_refused = True

    def validate(self, image: Image) -> Action | None:
        """Raise the refusal; else return None: `plan` makes the change."""
        self._is_refused = True
        broker = image.brokers.get(self._node_id)
        if broker is None:
            raise RefusedError(
                ErrorCode.broker_id_not_registered, f"Broker ID {self._node_id} is not currently registered"
            )
        if not broker.is_fenced:
            raise invalid_request(
                f"broker {self._node_id} is running: stop it, then unregister it (one that was killed is "
                "fenced after broker.session.timeout.ms)"
            )
        if image.controller.node_id == NO_NODE:
            raise RefusedError(
                ErrorCode.request_timed_out, "There is no controller at this moment: ask again."
            )
        self._is_refused = False
        return None

    def plan(self, image: Image, _actions: object) -> list[Action]:
        if self._is_refused:
            return []
        return plan_unregistering(
            image,
            self._node_id,
            image.brokers[self._node_id].broker_epoch,
            controller_epoch=image.controller.controller_epoch,
        )
