"""What clients may do: the ACLs of the newest image, asked on behalf of one request.

Without authorizer.class.name everybody may do everything, and the operations that requests ask for are all
of a resource's, as in Kafka.

Invariants: the verdicts are of the newest image that this broker knows: after a change of ACLs, within the
    time that it takes to follow the metadata log.
Not here: which operations a request needs (rules.py), the verdicts (sparklog/client/authorizer.py).
Concurrency: event loop only.
Sources: Kafka AuthHelper, AclEntry.supportedOperations, Utils.to32BitField; KIP-430.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from sparklog.client.authorizer import OPERATIONS, Authorizer
from sparklog.clock import Clock, SystemClock
from sparklog.metadata import CLUSTER_NAME, Acl, AclOperation, Image, ResourceType, empty_image
from sparklog_server.protocol.apis import ApiKey, RequestContext
from sparklog_server.protocol.responses import topic_id_text
from sparklog_server.protocol.wire import in_slices
from sparklog_server.security.audit import MAX_DENIALS, Asked, Audit
from sparklog_server.settings.access import AccessSettings

T = TypeVar("T")
NOT_ASKED_FOR = -(1 << 31)
# Kafka's numbers of operations; 0 and 1 are UNKNOWN and ANY.
OPERATION_CODES: Final = {operation: code for code, operation in enumerate(AclOperation, 2)}


def _bits(operations: Iterable[AclOperation]) -> int:
    return sum(1 << OPERATION_CODES[operation] for operation in operations)


class Access:
    """The authorizer of a broker, if it has one."""

    def __init__(
        self,
        settings: AccessSettings | None = None,
        image: Callable[[], Image] = lambda: empty_image(""),
        clock: Clock | None = None,
    ) -> None:
        settings = settings or AccessSettings()
        self.is_on = settings.is_on
        self.audit = Audit(settings, clock or SystemClock())
        self.newest = image
        self._super_users = settings.parsed_super_users()
        self._allows_by_default = settings.allow_everyone_if_no_acl_found
        self._acls: frozenset[Acl] | None = None
        self._authorizer = Authorizer(())

    @property
    def authorizer(self) -> Authorizer:
        """Return the verdicts of the newest image's ACLs."""
        acls = self.newest().acls
        if acls is not self._acls:
            self._authorizer = Authorizer(
                acls, super_users=self._super_users, allows_by_default=self._allows_by_default
            )
            self._acls = acls
        return self._authorizer

    def is_super_user(self, principal: str) -> bool:
        """True if the principal may do everything."""
        return principal in self._super_users

    def caller(self, context: RequestContext) -> "Caller":
        """Return the client of a request."""
        return Caller(self, context)


class Caller:
    """The client of one request: what it may do, and what was asked on its behalf."""

    __slots__ = ("_access", "_decide", "_denials", "context")

    def __init__(self, access: Access, context: RequestContext) -> None:
        self._access = access
        self.context = context
        self._denials = 0
        self._decide = access.authorizer.decide if access.is_on else None

    @property
    def is_limited(self) -> bool:
        """True if it may not do everything: lists need a filter."""
        return self._decide is not None and not self._access.is_super_user(self.context.principal)

    @property
    def image(self) -> Image:
        """The newest image."""
        return self._access.newest()

    def may(
        self,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str = CLUSTER_NAME,
        *,
        count: int = 1,
        is_filter: bool = False,
    ) -> bool:
        """True if the client may do this.

        Args:
            count: how often the request names the resource.
            is_filter: a denial is no error: it leaves something out, or another permission is enough.
        """
        if self._decide is None:
            return True
        access, context = self._access, self.context
        verdict = self._decide(context.principal, context.peer_host, operation, resource_type, name)
        is_allowed = verdict.is_allowed
        if is_allowed and not access.audit.wants_allowed:
            return True
        if access.audit.wants(is_allowed=is_allowed):
            asked = self._asked(operation, resource_type, name, count)
            if is_allowed or is_filter or self._denials < MAX_DENIALS:
                access.audit.note(asked, verdict, is_filter=is_filter and not is_allowed)
            elif self._denials == MAX_DENIALS:
                access.audit.note_more(asked)
        self._denials += not (is_allowed or is_filter)
        return is_allowed

    def may_any(self, operation: AclOperation, resource_type: ResourceType) -> bool:
        """True if the client may do this to a resource of the type, whatever its name."""
        if not self.is_limited:
            return True
        context = self.context
        return self._access.authorizer.decide_any(
            context.principal, context.peer_host, operation, resource_type
        )

    async def split(self, items: Iterable[T], is_allowed: Callable[[T], bool]) -> tuple[list[T], list[T]]:
        """Return the allowed items, and the others; yields to the event loop: there may be thousands."""
        if not self._access.is_on:
            return list(items), []
        items = list(items)
        verdicts = await in_slices(map(is_allowed, items))
        allowed = [one for one, verdict in zip(items, verdicts, strict=True) if verdict]
        refused = [one for one, verdict in zip(items, verdicts, strict=True) if not verdict]
        return allowed, refused

    async def visible(
        self,
        items: Iterable[T],
        operation: AclOperation,
        resource_type: ResourceType,
        name: Callable[[T], str],
    ) -> list[T]:
        """Return the items of a listing on which the client may do this."""
        items = list(items)
        if not self.is_limited:
            return items
        allowed, _ = await self.split(
            items, lambda one: self.may(operation, resource_type, name(one), is_filter=True)
        )
        return allowed

    def all_operations(self, resource_type: ResourceType) -> int:
        """Return the bits of all operations of such resources."""
        return _bits(OPERATIONS[resource_type])

    def visible_cluster_operations(self) -> int:
        """Return the bits for the cluster; none for a client that may not describe it."""
        if not self.may(AclOperation.DESCRIBE, ResourceType.CLUSTER, is_filter=True):
            return 0
        return self.operations(ResourceType.CLUSTER)

    def operations(self, resource_type: ResourceType, name: str = CLUSTER_NAME) -> int:
        """Return the bits of the operations that the client may do on a resource."""
        supported = OPERATIONS[resource_type]
        if self.is_limited:
            decide = functools.partial(
                self._access.authorizer.decide, self.context.principal, self.context.peer_host
            )
            supported = tuple(one for one in supported if decide(one, resource_type, name).is_allowed)
        return _bits(supported)

    def topic_name(self, element: Any) -> str | None:
        """Return the name of the topic that an element of a request names; None for an unknown id."""
        topic_id = getattr(element, "topic_id", None)
        if topic_id is not None and topic_id.int:
            topic = self.image.topic_by_id.get(topic_id_text(topic_id))
            return None if topic is None else topic.name
        names = (getattr(element, of, None) for of in ("name", "topic", "topic_name"))
        return next((name for name in names if name is not None), None)

    def _asked(self, operation: str, resource_type: str, name: str, count: int) -> Asked:
        context = self.context
        return Asked(
            principal=context.principal,
            host=context.peer_host,
            client_id=context.client_id,
            api=api_name(context.api_key),
            operation=operation,
            resource_type=resource_type,
            name=name,
            references=count,
        )


def group_operations(caller: Caller | None, group_id: str) -> int:
    """Return the bits of what a client may do with a group; `caller` None: the request does not ask."""
    return NOT_ASKED_FOR if caller is None else caller.operations(ResourceType.GROUP, group_id)


@functools.cache
def api_name(api_key: int) -> str:
    """Return Kafka's name of an API, as ListOffsets."""
    return ApiKey(api_key).name.title().replace("_", "")
