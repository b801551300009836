"""Settings of who may do what, and how much: the authorizer, what it tells about its verdicts, and quotas.

Sources: Kafka StandardAuthorizer, QuotaConfig.
"""

import dataclasses

from sparklog.client.authorizer import parse_super_users
from sparklog.errors import InvalidRequestError
from sparklog.log.setting import LONG_MAX, setting

STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    """The fields' names are the keys with underscores."""

    authorizer_class_name: str = setting(
        "authorizer.class.name",
        default="",
        choices=("", STANDARD_AUTHORIZER),
        doc="""Whether clients need permission: with Kafka's StandardAuthorizer by the ACLs in the root, which
        every broker of the root should have on; empty: everybody may do everything. Nothing is loaded by this
        name. ACLs bind the clients of brokers, not those who read the root itself.""",
    )
    super_users: str = setting(
        "super.users",
        default="",
        doc="""Principals that may do everything, separated by semicolons: User:admin;User:CN=ops,O=x.""",
    )
    allow_everyone_if_no_acl_found: bool = setting(
        "allow.everyone.if.no.acl.found",
        default=False,
        doc="""A resource without any ACL is open to everybody. false: only to super users.""",
    )
    audit_format: str = setting(
        "sparklog.audit.format",
        default="text",
        choices=("text", "json"),
        doc="""The verdicts in the log kafka.authorizer.logger: Kafka's lines, or a JSON object each. Denied
        ones have the level INFO, allowed ones DEBUG.""",
    )
    audit_topic_enable: bool = setting(
        "sparklog.audit.topic.enable",
        default=False,
        doc="""Append verdicts to the topic __audit, as JSON, for Spark SQL. It is created if it is missing,
        with one partition, and its retention is its own.""",
    )
    audit_topic_allowed: bool = setting(
        "sparklog.audit.topic.allowed",
        default=False,
        doc="""Also append verdicts that allow: one for each topic, group and other resource of each request.
        false: only those that deny.""",
    )
    audit_buffer: int = setting(
        "sparklog.audit.buffer.events",
        default=10_000,
        minimum=1,
        maximum=1_000_000,
        unit="events",
        doc="""Verdicts that wait to be appended to __audit; further ones are dropped, and counted there. Each
        takes about 1 KB.""",
    )
    audit_interval_ms: int = setting(
        "sparklog.audit.interval.ms",
        default=1_000,
        minimum=10,
        maximum=LONG_MAX,
        doc="""How often waiting verdicts are appended to __audit: a commit of the root each time.""",
    )

    def __post_init__(self) -> None:
        """Check the super users."""
        self.parsed_super_users()

    @property
    def is_on(self) -> bool:
        """True if clients need permission."""
        return bool(self.authorizer_class_name)

    def parsed_super_users(self) -> frozenset[str]:
        """Return the principals of super.users."""
        try:
            return parse_super_users(self.super_users)
        except ValueError as error:
            raise InvalidRequestError(
                "INVALID_CONFIG_VALUE", f"super.users: {error}", fix="write User:alice;User:bob"
            ) from None


# --- quotas ------------------------------------------------------------------------------------------
#
# The quotas themselves are in the root: kafka-configs, or sparklog quotas.


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class QuotaSettings:
    """The fields' names are the keys with underscores."""

    quota_window_num: int = setting(
        "quota.window.num",
        default=11,
        minimum=2,
        maximum=1_000,
        unit="windows",
        doc="""Windows over which a client's rate is the mean. More: longer bursts are forgiven.""",
    )
    quota_window_size_seconds: int = setting(
        "quota.window.size.seconds",
        default=1,
        minimum=1,
        maximum=3_600,
        unit="seconds",
        doc="""Length of each window; also the longest wait because of request_percentage.""",
    )
    controller_quota_window_num: int = setting(
        "controller.quota.window.num",
        default=11,
        minimum=2,
        maximum=1_000,
        unit="windows",
        doc="""Windows whose controller_mutation_rate a client may use in one burst.""",
    )
    controller_quota_window_size_seconds: int = setting(
        "controller.quota.window.size.seconds",
        default=1,
        minimum=1,
        maximum=3_600,
        unit="seconds",
        doc="""Length of each of these windows.""",
    )
