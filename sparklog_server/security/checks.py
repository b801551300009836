"""How requests are checked: what is left of one for its handler, and the errors that are added to the answer.

A rule checks a request before its handler sees it. It takes out the elements that the client may not touch,
and adds their errors to the answer; or it answers by itself. So a handler knows nothing of permissions,
except where the table (rules.py) says `in its handler`.

Invariants: an error is the same whether the resource exists or not. Names that were not asked for (listings)
    are left out without an error.
Not here: which rule an API has (rules.py), verdicts (access.py).
Sources: Kafka KafkaApis, ControllerApis, AuthHelper, AclApis, the documentation's table of operations.
"""

import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sparklog.metadata import CLUSTER_NAME, AclOperation, ResourceType
from sparklog_server.protocol.apis import ApiKey, ErrorCode
from sparklog_server.protocol.responses import field, make
from sparklog_server.protocol.wire import in_slices
from sparklog_server.security.access import Caller, api_name

# --- rules -------------------------------------------------------------------------------------------

READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE = (
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.CREATE,
    AclOperation.DELETE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
)
DESCRIBE_CONFIGS, ALTER_CONFIGS = AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS
CLUSTER_ACTION, IDEMPOTENT_WRITE = AclOperation.CLUSTER_ACTION, AclOperation.IDEMPOTENT_WRITE
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTION = ResourceType.TRANSACTIONAL_ID
CODES: Mapping[ResourceType, ErrorCode] = {
    TOPIC: ErrorCode.topic_authorization_failed,
    GROUP: ErrorCode.group_authorization_failed,
    CLUSTER: ErrorCode.cluster_authorization_failed,
    TRANSACTION: ErrorCode.transactional_id_authorization_failed,
}
MESSAGES: Mapping[ErrorCode, str] = {
    ErrorCode.topic_authorization_failed: "Topic authorization failed.",
    ErrorCode.group_authorization_failed: "Group authorization failed.",
    ErrorCode.cluster_authorization_failed: "Cluster authorization failed.",
    ErrorCode.transactional_id_authorization_failed: "Transactional Id authorization failed.",
}
NOTHING = -1

Finish = Callable[[Any], Awaitable[Any]]


class Checked(NamedTuple):
    """What a rule says of a request.

    Fields:
        request: what is left of it, for the handler.
        answer: given instead of the handler's.
        finish: completes the handler's answer.
    """

    request: Any = None
    answer: Any = None
    finish: Finish | None = None


Check = Callable[[Any, Caller], Awaitable[Checked]]


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """The permissions of an API.

    Fields:
        needs: in words, for docs/acls.md.
        check: None: in its handler, or nothing is needed.
    """

    needs: str
    check: Check | None = None


async def guarded(rule: Rule, caller: Caller, request: Any, handle: Callable[[Any], Awaitable[Any]]) -> Any:
    """Check a request, have what is left of it handled, and complete the answer."""
    finish = None
    assert rule.check is not None
    if request is not None:
        request, answer, finish = await rule.check(request, caller)
        if answer is not None:
            return answer
    waiting = handle(request)
    del request  # handlers that wait for long keep only what they need of it
    answer = await waiting
    return answer if finish is None or answer is None else await finish(answer)


def _with(entity: Any, **changes: Any) -> Any:
    return dataclasses.replace(entity, **changes)


def _refusal(caller: Caller, code: ErrorCode, **fields: Any) -> Any:
    """Return the answer of a request that is refused as a whole."""
    cls = getattr(caller.context.types, f"{api_name(caller.context.api_key)}Response")
    known = {one.name for one in dataclasses.fields(cls)}
    fields = {"error_code": code, "error_message": MESSAGES[code], "throttle_time": 0} | fields
    return make(cls, **{name: value for name, value in fields.items() if name in known})


def needs(operation: AclOperation, kind: ResourceType) -> str:
    return f"{operation.title().replace('_', '')} on {kind.title().replace('_', '')}"


# --- requests as a whole -----------------------------------------------------------------------------


def whole(
    operation: AclOperation,
    kind: ResourceType,
    of: str = "",
    *,
    refused: Callable[[Any, Caller, ErrorCode], Any] | None = None,
    **fields: Any,
) -> Rule:
    """A request that needs one permission; `of`: its field with the resource's name."""

    async def check(request: Any, caller: Caller) -> Checked:
        name = getattr(request, of) if of else CLUSTER_NAME
        if caller.may(operation, kind, name):
            return Checked(request)
        code = CODES[kind]
        return Checked(answer=refused(request, caller, code) if refused else _refusal(caller, code, **fields))

    return Rule(needs(operation, kind), check)


def _topic_errors(
    caller: Caller,
    topics: Iterable[Any],
    code: ErrorCode,
    *,
    entity: str,
    part: str,
    numbers: Callable[[Any], Iterable[int]],
    name: str = "name",
    parts: str = "partitions",
    number: str = "partition_index",
    error: str = "error_code",
    **fields: Any,
) -> Iterator[Any]:
    """Yield the topics of an answer, each partition with the error.

    Args:
        entity, part: the names of the types of a topic and of a partition.
        numbers: the partitions of a topic of the request.
        name, parts, number, error: the names of fields in the answer.
        fields: further fields of a partition.
    """
    types = caller.context.types
    topic_type, part_type = getattr(types, entity), getattr(types, part)
    by_id = any(one.name == "topic_id" for one in dataclasses.fields(topic_type))
    for topic in topics:
        found = [make(part_type, **{number: one, error: code}, **fields) for one in numbers(topic)]
        named = {"topic_id": topic.topic_id} if by_id else {name: _text(topic)}
        yield make(topic_type, **named, **{parts: found})


def _text(topic: Any) -> str:
    return str(topic.name if hasattr(topic, "name") else topic.topic)


def _indexes(topic: Any) -> Iterator[int]:
    return (one.partition_index for one in topic.partitions)


async def _split_topics(
    caller: Caller, topics: Iterable[Any], operation: AclOperation, **options: Any
) -> tuple[list[Any], list[Any]]:
    """Return the topics of a request that the client may use, and the others; unknown ids stay."""

    def is_allowed(topic: Any) -> bool:
        name = caller.topic_name(topic)
        parts = field(topic, "partitions", field(topic, "partition_indexes", ())) or ()
        return name is None or caller.may(operation, TOPIC, name, count=max(1, len(parts)), **options)

    return await caller.split(topics, is_allowed)


def _adding(into: str, refused: Iterable[Any]) -> Finish:
    async def finish(answer: Any) -> Any:
        return _with(answer, **{into: (*getattr(answer, into), *await in_slices(refused))})

    return finish


# --- topics with partitions --------------------------------------------------------------------------


def topics(operation: AclOperation, into: str, *, error: Mapping[str, Any], of: str = "topics") -> Rule:
    """Topics with partitions: each needs the permission, or its partitions have errors.

    Args:
        of, into: the fields with topics, of the request and of the answer.
        error: how errors of topics are written (_topic_errors).
    """

    async def check(request: Any, caller: Caller) -> Checked:
        allowed, refused = await _split_topics(caller, getattr(request, of), operation)
        if not refused:
            return Checked(request)
        errors = _topic_errors(caller, refused, CODES[TOPIC], **error)
        return Checked(_with(request, **{of: tuple(allowed)}), finish=_adding(into, errors))

    return Rule(needs(operation, TOPIC), check)


LIST_OFFSETS = {
    "entity": "ListOffsetsTopicResponse",
    "part": "ListOffsetsPartitionResponse",
    "numbers": _indexes,
    "timestamp": NOTHING,
    "offset": NOTHING,
    "leader_epoch": NOTHING,
}
DELETE_RECORDS = {
    "entity": "DeleteRecordsTopicResult",
    "part": "DeleteRecordsPartitionResult",
    "numbers": _indexes,
    "low_watermark": NOTHING,
}
EPOCHS = {
    "entity": "OffsetForLeaderTopicResult",
    "part": "EpochEndOffset",
    "numbers": lambda topic: (one.partition for one in topic.partitions),
    "name": "topic",
    "number": "partition",
    "leader_epoch": NOTHING,
    "end_offset": NOTHING,
}


def _committed(api: str) -> dict[str, Any]:
    return {"entity": f"{api}ResponseTopic", "part": f"{api}ResponsePartition", "numbers": _indexes}


# --- committed offsets -------------------------------------------------------------------------------


async def offset_commit(request: Any, caller: Caller) -> Checked:
    api = api_name(caller.context.api_key)
    whole: Sequence[tuple[AclOperation, ResourceType, str]] = [(READ, GROUP, request.group_id)]
    if caller.context.api_key == ApiKey.TXN_OFFSET_COMMIT:
        whole = [(WRITE, TRANSACTION, request.transactional_id), *whole]
    for operation, kind, name in whole:
        if not caller.may(operation, kind, name):
            errors = await in_slices(_topic_errors(caller, request.topics, CODES[kind], **_committed(api)))
            cls = getattr(caller.context.types, f"{api}Response")
            return Checked(answer=make(cls, topics=errors))
    allowed, refused = await _split_topics(caller, request.topics, READ)
    if not refused:
        return Checked(request)
    errors_of = _topic_errors(caller, refused, CODES[TOPIC], **_committed(api))
    return Checked(_with(request, topics=tuple(allowed)), finish=_adding("topics", errors_of))


async def offset_delete(request: Any, caller: Caller) -> Checked:
    if not caller.may(DELETE, GROUP, request.group_id):
        return Checked(answer=_refusal(caller, CODES[GROUP]))
    allowed, refused = await _split_topics(caller, request.topics, READ)
    if not refused:
        return Checked(request)
    errors = _topic_errors(caller, refused, CODES[TOPIC], **_committed("OffsetDelete"))
    finish = _adding("topics", errors)

    async def unless_failed(answer: Any) -> Any:
        return answer if answer.error_code else await finish(answer)

    return Checked(_with(request, topics=tuple(allowed)), finish=unless_failed)


def _fetched(suffix: str) -> dict[str, Any]:
    return {
        "entity": f"OffsetFetchResponse{suffix}",
        "part": f"OffsetFetchResponse{'Partitions' if suffix == 'Topics' else 'Partition'}",
        "numbers": lambda topic: topic.partition_indexes,
        "committed_offset": NOTHING,
        "committed_leader_epoch": NOTHING,
        "metadata": "",
    }


async def offset_fetch(request: Any, caller: Caller) -> Checked:
    types = caller.context.types
    if hasattr(request, "groups"):
        return await _offset_fetch_of_groups(request, caller)
    if not caller.may(DESCRIBE, GROUP, request.group_id):
        errors = _topic_errors(caller, request.topics or (), CODES[GROUP], **_fetched("Topic"))
        answer = make(types.OffsetFetchResponse, topics=await in_slices(errors))
        if hasattr(answer, "error_code"):
            answer = _with(answer, error_code=CODES[GROUP])
        return Checked(answer=answer)
    topics, finish = await _visible_offsets(request.topics, caller, "Topic")
    return Checked(_with(request, topics=topics), finish=finish)


async def _visible_offsets(topics: Any, caller: Caller, suffix: str) -> tuple[Any, Finish]:
    """Return the topics to look up, and what completes them in the answer. None: all that are visible."""
    if topics is None:

        async def left_out(answer: Any) -> Any:
            # From version 10 on by their ids; a topic that is gone has no name.
            found = await caller.visible(
                answer.topics, DESCRIBE, TOPIC, lambda topic: caller.topic_name(topic) or ""
            )
            return _with(answer, topics=tuple(found))

        return None, left_out
    allowed, refused = await _split_topics(caller, topics, DESCRIBE)
    return tuple(allowed), _adding("topics", _topic_errors(caller, refused, CODES[TOPIC], **_fetched(suffix)))


async def _offset_fetch_of_groups(request: Any, caller: Caller) -> Checked:
    cls = caller.context.types.OffsetFetchResponseGroup
    left: list[Any] = []
    refused: list[Any] = []
    finishes: dict[str, Finish] = {}
    for group in {one.group_id: one for one in request.groups}.values():
        if caller.may(DESCRIBE, GROUP, group.group_id):
            topics, finishes[group.group_id] = await _visible_offsets(group.topics, caller, "Topics")
            left.append(_with(group, topics=topics))
        else:
            errors = _topic_errors(caller, group.topics or (), CODES[GROUP], **_fetched("Topics"))
            refused.append(
                make(cls, group_id=group.group_id, error_code=CODES[GROUP], topics=await in_slices(errors))
            )

    async def finish(answer: Any) -> Any:
        groups = [await finishes[one.group_id](one) for one in answer.groups]
        return _with(answer, groups=(*groups, *refused))

    return Checked(_with(request, groups=tuple(left)), finish=finish)


# --- elements with an error each ---------------------------------------------------------------------


def each(
    operation: AclOperation,
    kind: ResourceType,
    of: str,
    into: str,
    entity: str,
    name: Callable[[Any], str],
    key: str,
    **fields: Any,
) -> Rule:
    """Elements that need the permission, or have an error.

    Args:
        of, into: the fields with elements, of the request and of the answer.
        entity, key: the type of an element of the answer, and its field with the name.
        fields: further fields of it.
    """

    async def check(request: Any, caller: Caller) -> Checked:
        allowed, refused = await caller.split(
            getattr(request, of), lambda one: caller.may(operation, kind, name(one))
        )
        if not refused:
            return Checked(request)
        cls = getattr(caller.context.types, entity)
        code = CODES[kind]
        told = {"error_code": code} | fields
        if any(one.name == "error_message" for one in dataclasses.fields(cls)):
            told["error_message"] = MESSAGES[code]
        errors = (make(cls, **{key: one}, **told) for one in dict.fromkeys(map(name, refused)))
        return Checked(_with(request, **{of: tuple(allowed)}), finish=_adding(into, errors))

    return Rule(needs(operation, kind), check)


def itself(name: str) -> str:
    return name


async def describe_groups(request: Any, caller: Caller) -> Checked:
    rule = each(
        DESCRIBE,
        GROUP,
        "groups",
        "groups",
        "DescribedGroup",
        itself,
        "group_id",
        group_state="",
        protocol_type="",
        protocol_data="",
        authorized_operations=-(1 << 31),
    )
    assert rule.check is not None
    return await rule.check(request, caller)


async def create_topics(request: Any, caller: Caller) -> Checked:
    if caller.may(CREATE, CLUSTER, is_filter=True):
        return Checked(request, finish=_hiding_configs(caller))
    allowed, refused = await caller.split(request.topics, lambda one: caller.may(CREATE, TOPIC, one.name))
    cls, code = caller.context.types.CreatableTopicResult, CODES[TOPIC]
    errors = [
        make(
            cls,
            name=name,
            error_code=code,
            error_message=MESSAGES[code],
            num_partitions=NOTHING,
            replication_factor=NOTHING,
            configs=(),
        )
        for name in dict.fromkeys(one.name for one in refused)
    ]
    hide = _hiding_configs(caller)

    async def finish(answer: Any) -> Any:
        answer = await hide(answer)
        return _with(answer, topics=(*answer.topics, *errors))

    return Checked(_with(request, topics=tuple(allowed)), finish=finish)


def _hiding_configs(caller: Caller) -> Finish:
    """Leave out the settings of new topics that the client may not see."""

    async def finish(answer: Any) -> Any:
        if not hasattr(caller.context.types, "CreatableTopicConfigs"):  # before version 5
            return answer
        code = CODES[TOPIC]
        topics = [
            one
            if one.error_code or caller.may(DESCRIBE_CONFIGS, TOPIC, one.name, is_filter=True)
            else _with(
                one,
                configs=(),
                topic_config_error_code=code,
                num_partitions=NOTHING,
                replication_factor=NOTHING,
            )
            for one in answer.topics
        ]
        return _with(answer, topics=tuple(topics))

    return finish


async def delete_topics(request: Any, caller: Caller) -> Checked:
    of = "topics" if getattr(request, "topics", None) is not None else "topic_names"
    asked = getattr(request, of)

    def name_of(one: Any) -> str | None:
        return one if isinstance(one, str) else caller.topic_name(one)

    def is_allowed(one: Any) -> bool:
        name = name_of(one)
        return name is None or caller.may(DELETE, TOPIC, name)

    allowed, refused = await caller.split(asked, is_allowed)
    cls, code = caller.context.types.DeletableTopicResult, CODES[TOPIC]
    errors = []
    for one in dict.fromkeys(refused):
        name, topic_id = one, None
        if not isinstance(one, str):
            name, topic_id = one.name, one.topic_id
            if name is None:  # of an id, only to a client that may see the topic
                known = name_of(one)
                name = known if known and caller.may(DESCRIBE, TOPIC, known, is_filter=True) else None
        fields = {} if topic_id is None else {"topic_id": topic_id}
        errors.append(make(cls, name=name, error_code=code, error_message=MESSAGES[code], **fields))
    return Checked(_with(request, **{of: tuple(allowed)}), finish=_adding("responses", errors))


# --- configs -----------------------------------------------------------------------------------------

_CONFIG_TOPIC, _CONFIG_GROUP = 2, 32


def configs(operation: AclOperation, into: str, entity: str) -> Rule:
    async def check(request: Any, caller: Caller) -> Checked:
        def kind_of(one: Any) -> ResourceType:
            return {_CONFIG_TOPIC: TOPIC, _CONFIG_GROUP: GROUP}.get(int(one.resource_type), CLUSTER)

        def is_allowed(one: Any) -> bool:
            kind = kind_of(one)
            return caller.may(operation, kind, CLUSTER_NAME if kind is CLUSTER else one.resource_name)

        allowed, refused = await caller.split(request.resources, is_allowed)
        cls = getattr(caller.context.types, entity)
        seen = {(one.resource_type, one.resource_name): CODES[kind_of(one)] for one in refused}
        errors = [
            make(cls, error_code=code, error_message=MESSAGES[code], resource_type=kind, resource_name=name)
            for (kind, name), code in seen.items()
        ]
        return Checked(_with(request, resources=tuple(allowed)), finish=_adding(into, errors))

    return Rule(f"{operation.title().replace('_', '')} on Topic or Group; of brokers, on Cluster", check)


# --- coordinators and producers ----------------------------------------------------------------------

_OF_GROUPS, _OF_TRANSACTIONS, _OF_SHARES = 0, 1, 2


async def find_coordinator(request: Any, caller: Caller) -> Checked:
    kind = {_OF_GROUPS: GROUP, _OF_TRANSACTIONS: TRANSACTION}.get(field(request, "key_type", _OF_GROUPS))
    types = caller.context.types
    if kind is None:
        if field(request, "key_type") != _OF_SHARES or caller.may(CLUSTER_ACTION, CLUSTER):
            return Checked(request)
        kind = CLUSTER
    code = CODES[kind]
    told = {"error_code": code, "error_message": MESSAGES[code], "node_id": -1, "host": "", "port": -1}
    if not hasattr(request, "coordinator_keys"):
        if kind is not CLUSTER and caller.may(DESCRIBE, kind, request.key):
            return Checked(request)
        return Checked(answer=make(types.FindCoordinatorResponse, **told))
    allowed, refused = await caller.split(
        request.coordinator_keys, lambda key: kind is not CLUSTER and caller.may(DESCRIBE, kind, key)
    )
    errors = (make(types.Coordinator, key=key, **told) for key in dict.fromkeys(refused))
    return Checked(_with(request, coordinator_keys=tuple(allowed)), finish=_adding("coordinators", errors))


async def init_producer_id(request: Any, caller: Caller) -> Checked:
    code = None
    if request.transactional_id:
        if not caller.may(WRITE, TRANSACTION, request.transactional_id):
            code = CODES[TRANSACTION]
    elif not caller.may_any(WRITE, TOPIC) and not caller.may(IDEMPOTENT_WRITE, CLUSTER):
        code = CODES[CLUSTER]
    if code is None:
        return Checked(request)
    return Checked(answer=_refusal(caller, code, producer_id=NOTHING, producer_epoch=0))


async def add_partitions_to_txn(request: Any, caller: Caller) -> Checked:
    types, topics = caller.context.types, request.v3_and_below_topics
    shape: dict[str, Any] = {
        "entity": "AddPartitionsToTxnTopicResult",
        "part": "AddPartitionsToTxnPartitionResult",
        "numbers": lambda topic: topic.partitions,
        "parts": "results_by_partition",
        "error": "partition_error_code",
    }

    def answer(found: list[Any]) -> Checked:
        return Checked(answer=make(types.AddPartitionsToTxnResponse, results_by_topic_v3_and_below=found))

    if not caller.may(WRITE, TRANSACTION, request.v3_and_below_transactional_id):
        return answer(await in_slices(_topic_errors(caller, topics, CODES[TRANSACTION], **shape)))
    allowed, refused = await _split_topics(caller, topics, WRITE)
    if not refused:
        return Checked(request)
    errors = await in_slices(_topic_errors(caller, refused, CODES[TOPIC], **shape))
    others = _topic_errors(caller, allowed, ErrorCode.operation_not_attempted, **shape)
    return answer([*errors, *await in_slices(others)])


async def add_offsets_to_txn(request: Any, caller: Caller) -> Checked:
    if not caller.may(WRITE, TRANSACTION, request.transactional_id):
        return Checked(answer=_refusal(caller, CODES[TRANSACTION]))
    if not caller.may(READ, GROUP, request.group_id):
        return Checked(answer=_refusal(caller, CODES[GROUP]))
    return Checked(request)


async def write_txn_markers(request: Any, caller: Caller) -> Checked:
    if caller.may(ALTER, CLUSTER, is_filter=True) or caller.may(CLUSTER_ACTION, CLUSTER):
        return Checked(request)
    types = caller.context.types
    markers = [
        make(
            types.WritableTxnMarkerResult,
            producer_id=marker.producer_id,
            topics=await in_slices(
                _topic_errors(
                    caller,
                    marker.topics,
                    CODES[CLUSTER],
                    entity="WritableTxnMarkerTopicResult",
                    part="WritableTxnMarkerPartitionResult",
                    numbers=lambda topic: topic.partition_indexes,
                )
            ),
        )
        for marker in request.markers
    ]
    return Checked(answer=make(types.WriteTxnMarkersResponse, markers=markers))


# --- groups of the newer protocols, and users --------------------------------------------------------


_HAS_HIDDEN_TOPICS = "The group has described topic(s) that the client is not authorized to describe."


async def group_heartbeat(request: Any, caller: Caller) -> Checked:
    if not caller.may(READ, GROUP, request.group_id):
        return Checked(answer=_refusal(caller, CODES[GROUP]))
    names = dict.fromkeys(request.subscribed_topic_names or ())
    _, refused = await caller.split(names, lambda name: caller.may(DESCRIBE, TOPIC, name))
    return Checked(answer=_refusal(caller, CODES[TOPIC])) if refused else Checked(request)


async def group_description(request: Any, caller: Caller) -> Checked:
    cls = caller.context.types.DescribedGroup
    allowed, refused = await caller.split(request.group_ids, lambda name: caller.may(DESCRIBE, GROUP, name))
    told = {"error_code": CODES[GROUP], "error_message": MESSAGES[CODES[GROUP]]}
    errors = [make(cls, group_id=name, **told) for name in dict.fromkeys(refused)]

    async def finish(answer: Any) -> Any:
        groups = [
            one
            if len(await caller.visible(names := _described_topics(one), DESCRIBE, TOPIC, str)) == len(names)
            else make(
                cls,
                group_id=one.group_id,
                error_code=CODES[TOPIC],
                error_message=_HAS_HIDDEN_TOPICS,
            )
            for one in answer.groups
        ]
        return _with(answer, groups=(*groups, *errors))

    return Checked(_with(request, group_ids=tuple(allowed)), finish=finish)


def _described_topics(group: Any) -> list[str]:
    assignments = [
        getattr(member, name, None)
        for member in group.members
        for name in ("assignment", "target_assignment")
    ]
    return list(
        dict.fromkeys(
            part.topic_name for one in assignments if one is not None for part in one.topic_partitions
        )
    )


def of_group_and_topics(operation: AclOperation) -> Check:
    """Need the operation on a request's group, and Read on all topics that it names; all or nothing."""

    async def check(request: Any, caller: Caller) -> Checked:
        if not caller.may(operation, GROUP, request.group_id or ""):
            return Checked(answer=_refusal(caller, CODES[GROUP]))
        _, refused = await _split_topics(caller, request.topics, READ)
        return Checked(answer=_refusal(caller, CODES[TOPIC])) if refused else Checked(request)

    return check


async def share_offsets(request: Any, caller: Caller) -> Checked:
    cls = caller.context.types.DescribeShareGroupOffsetsResponseGroup
    allowed, refused = await caller.split(
        request.groups, lambda one: caller.may(DESCRIBE, GROUP, str(one.group_id))
    )
    code = CODES[GROUP]
    errors = [
        make(cls, group_id=one.group_id, topics=(), error_code=code, error_message=MESSAGES[code])
        for one in refused
    ]

    async def finish(answer: Any) -> Any:
        groups = [
            _with(
                one,
                topics=tuple(
                    await caller.visible(one.topics, DESCRIBE, TOPIC, lambda topic: str(topic.topic_name))
                ),
            )
            for one in answer.groups
        ]
        return _with(answer, groups=(*groups, *errors))

    return Checked(_with(request, groups=tuple(allowed)), finish=finish)


def no_credentials(request: Any, caller: Caller, code: ErrorCode) -> Any:
    types = caller.context.types
    names = dict.fromkeys(one.name for one in (*request.deletions, *request.upsertions))
    results = [
        make(types.AlterUserScramCredentialsResult, user=name, error_code=code, error_message=MESSAGES[code])
        for name in names
    ]
    return make(types.AlterUserScramCredentialsResponse, results=results)


# --- listings ----------------------------------------------------------------------------------------


async def list_groups(request: Any, caller: Caller) -> Checked:
    if caller.may(DESCRIBE, CLUSTER, is_filter=True):
        return Checked(request)

    async def finish(answer: Any) -> Any:
        groups = await caller.visible(answer.groups, DESCRIBE, GROUP, lambda one: str(one.group_id))
        return _with(answer, groups=tuple(groups))

    return Checked(request, finish=finish)


async def list_transactions(request: Any, caller: Caller) -> Checked:
    async def finish(answer: Any) -> Any:
        found = await caller.visible(
            answer.transaction_states, DESCRIBE, TRANSACTION, lambda one: str(one.transactional_id)
        )
        return _with(answer, transaction_states=tuple(found))

    return Checked(request, finish=finish)


async def describe_transactions(request: Any, caller: Caller) -> Checked:
    allowed, refused = await caller.split(
        request.transactional_ids, lambda name: caller.may(DESCRIBE, TRANSACTION, name)
    )
    cls = caller.context.types.TransactionState
    told = {"error_code": CODES[TRANSACTION], "producer_id": NOTHING, "producer_epoch": NOTHING}
    errors = [make(cls, transactional_id=name, **told) for name in dict.fromkeys(refused)]

    async def finish(answer: Any) -> Any:
        states = [
            _with(one, topics=tuple(await caller.visible(one.topics, DESCRIBE, TOPIC, _text)))
            for one in answer.transaction_states
        ]
        return _with(answer, transaction_states=(*states, *errors))

    return Checked(_with(request, transactional_ids=tuple(allowed)), finish=finish)


# --- replicas ----------------------------------------------------------------------------------------


def no_log_dirs(request: Any, caller: Caller, code: ErrorCode) -> Any:
    types = caller.context.types
    topics = {(topic.name, one) for of in request.dirs for topic in of.topics for one in topic.partitions}
    found: dict[str, list[Any]] = {}
    for name, number in sorted(topics):
        one = make(types.AlterReplicaLogDirPartitionResult, partition_index=number, error_code=code)
        found.setdefault(name, []).append(one)
    results = [
        make(types.AlterReplicaLogDirTopicResult, topic_name=name, partitions=parts)
        for name, parts in found.items()
    ]
    return make(types.AlterReplicaLogDirsResponse, results=results)


def no_election(request: Any, caller: Caller, code: ErrorCode) -> Any:
    types = caller.context.types
    errors = _topic_errors(
        caller,
        request.topic_partitions or (),
        code,
        entity="ReplicaElectionResult",
        part="PartitionResult",
        numbers=lambda topic: topic.partitions,
        name="topic",
        parts="partition_result",
        number="partition_id",
        error_message=MESSAGES[code],
    )
    return make(types.ElectLeadersResponse, error_code=code, replica_election_results=list(errors))


def no_results(request: Any, caller: Caller, code: ErrorCode) -> Any:
    """Every creation, or filter, of ACLs has the error."""
    types = caller.context.types
    told = {"error_code": code, "error_message": MESSAGES[code]}
    if caller.context.api_key == ApiKey.CREATE_ACLS:
        results = [make(types.AclCreationResult, **told) for _ in request.creations]
        return make(types.CreateAclsResponse, results=results)
    filters = [make(types.DeleteAclsFilterResult, **told) for _ in request.filters]
    return make(types.DeleteAclsResponse, filter_results=filters)


def no_quotas(request: Any, caller: Caller, code: ErrorCode) -> Any:
    types = caller.context.types
    entries = [
        make(
            types.EntryData,
            error_code=code,
            error_message=MESSAGES[code],
            entity=[
                make(types.EntityData, entity_type=part.entity_type, entity_name=part.entity_name)
                for part in entry.entity
            ],
        )
        for entry in request.entries
    ]
    return make(types.AlterClientQuotasResponse, entries=entries)
