"""All settings of the broker: Kafka's names, each declared once; those without a counterpart in Kafka begin
with `sparklog.`.

Invariants: an unknown key is refused with the nearest known one, a key that only has a meaning in Kafka
    is refused with the reason (kafka_only.py); nothing is ignored. A key is declared in one area.
Layers of settings that a root may have, too (num.partitions, ...): the root's value, then the broker's, as in
    Kafka a cluster-wide value wins over server.properties. `root_defaults` is the broker's layer.
Not here: the declarations (the other files of this folder), reading files, flags and the environment
    (sources.py). A part of the broker gets the settings of its area, not all of them.
Sources: Kafka SocketServerConfigs, KafkaConfig, GroupCoordinatorConfig, TransactionStateManagerConfig.
"""

import contextlib
import dataclasses
import textwrap
from collections.abc import Mapping
from typing import Any, Self

from sparklog.errors import InvalidRequestError, SparklogError
from sparklog.log.config import TopicConfig, broker_configs, broker_key
from sparklog.log.setting import TYPE_NAMES, Setting, declared_settings, parse_settings, validate_settings
from sparklog_server.settings.access import AccessSettings, QuotaSettings
from sparklog_server.settings.broker import (
    BrokerSettings,
    ControllerSettings,
    FetchSettings,
    LogSettings,
    PublishSettings,
)
from sparklog_server.settings.groups import (
    GroupSettings,
    MaintenanceSettings,
    TopicSettings,
    TransactionSettings,
)
from sparklog_server.settings.network import HttpSettings, NetworkSettings
from sparklog_server.settings.security import (
    OAUTHBEARER,
    PREFIX,
    ListenerSecurity,
    SecuredListener,
    SecuritySettings,
    parse_override,
)
from sparklog_server.settings.share import ShareSettings
from sparklog_server.settings.updating import DYNAMIC, ROOT_KEYS, TOPIC_DEFAULTS, update_of

HTTP = "HTTP"  # the name of sparklog.http.listener among listeners


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The broker's typed settings, one field per area."""

    broker: BrokerSettings
    controller: ControllerSettings
    network: NetworkSettings
    topics: TopicSettings
    publish: PublishSettings
    fetch: FetchSettings
    groups: GroupSettings
    share: ShareSettings
    transactions: TransactionSettings
    maintenance: MaintenanceSettings
    http: HttpSettings
    logs: LogSettings
    security: SecuritySettings
    listener_security: ListenerSecurity  # of the listeners that have none of their own
    # By listener and field: what has the prefix listener.name.<name>.
    own_security: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict, repr=False)
    access: AccessSettings
    quotas: QuotaSettings

    @classmethod
    def parse(cls, configs: Mapping[str, str]) -> Self:
        """Return typed settings; missing keys have their defaults."""
        own: dict[str, dict[str, Any]] = {}
        shared = {key: text for key, text in configs.items() if not key.startswith(PREFIX)}
        for key in sorted(configs, key=len):  # what names a mechanism as well is longer, and wins
            if key.startswith(PREFIX):
                name, field, value = parse_override(key, configs[key])
                own.setdefault(name, {})[field] = value
        validate_settings(shared, SETTINGS, "broker")
        areas = {name: parse_settings(area, shared, {}) for name, area in _AREAS.items()}
        config = cls(**areas, own_security=own)
        config.validate_security()
        return config

    def secured_listeners(self) -> dict[str, SecuredListener]:
        """Return the protocol and the security settings of each listener, by its name."""
        return {
            name: SecuredListener.of(name, protocol, self.listener_security, self.own_security.get(name, {}))
            for name, protocol in self.network.protocols().items()
        }

    def secured_http(self) -> SecuredListener:
        """Return the same of the HTTP listener, whose own settings have the prefix listener.name.http."""
        own = self.own_security.get(HTTP, {})
        return SecuredListener.of(HTTP, self.http.http_protocol, self.listener_security, own)

    def validate_security(self) -> None:
        """Refuse settings of a listener that does not exist, and listeners that lack what they need."""
        secured = self.secured_listeners()
        if self.http.http_protocol.has_tls:
            secured = {HTTP: self.secured_http(), **secured}
        if strangers := sorted(set(self.own_security) - set(secured)):
            raise InvalidRequestError(
                "INVALID_CONFIG_VALUE",
                f"{PREFIX}{strangers[0].lower()}.*: no such listener, only {', '.join(secured)}",
                fix="use a listener's name, in lower case",
            )
        allowed = self.security.allowed_urls()
        for name, one in secured.items():
            url = one.settings.oauth_jwks_endpoint_url
            if OAUTHBEARER in one.mechanisms and url not in allowed:
                raise InvalidRequestError(
                    "INVALID_CONFIG_VALUE",
                    f"listener {name}: sasl.oauthbearer.jwks.endpoint.url {url[:200]} is not allowed",
                    fix="add it to org.apache.kafka.sasl.oauthbearer.allowed.urls",
                )

    def with_values(self, values: Mapping[str, str]) -> Self:
        """Return the settings with these values replaced; texts by declared keys."""
        changed: dict[str, dict[str, Any]] = {}
        for key, text in values.items():
            path, one = SETTINGS[key]
            area, field = path.split(".")
            changed.setdefault(area, {})[field] = one.parse(text)
        areas = {area: dataclasses.replace(getattr(self, area), **of) for area, of in changed.items()}
        return dataclasses.replace(self, **areas)

    def takes(self, values: Mapping[str, str]) -> bool:
        """True if these values are valid for this broker."""
        try:
            self.with_values(values)
        except SparklogError:
            return False
        return True

    def text_of(self, key: str) -> str:
        """Return the value of a declared key as text."""
        path, one = SETTINGS[key]
        area, field = path.split(".")
        return one.format(getattr(getattr(self, area), field))

    def root_defaults(self) -> dict[str, str]:
        """Return the layer below the root's own settings, by the root's keys."""
        return {key: self.text_of(name) for name, key in ROOT_KEYS.items() if name in SETTINGS}

    def maintenance_defaults(self) -> dict[str, str]:
        """Return the part of `root_defaults` that maintenance needs: retention and compaction."""
        names = declared_settings(MaintenanceSettings)
        return {key: self.text_of(name) for name, key in ROOT_KEYS.items() if name in names}


_AREAS: dict[str, Any] = {
    field.name: field.type for field in dataclasses.fields(ServerConfig) if field.name != "own_security"
}
# Key -> (area.field, declaration), sorted by key.
SETTINGS: dict[str, tuple[str, Setting]] = {
    key: (f"{area}.{field}", one)
    for key, area, field, one in sorted(
        (key, area, field, one)
        for area, declared in _AREAS.items()
        for key, (field, one) in declared_settings(declared).items()
    )
}


def describe_server_configs() -> str:
    """Return a Markdown table of all settings, for the documentation."""
    lines = ["|key|type|unit|default|allowed|update|meaning|", "|-|-|-|-|-|-|-|"]
    for key, (_, one) in SETTINGS.items():
        cells = (key, TYPE_NAMES[one.kind], one.unit, one.format(one.default), one.bounds)
        lines.append("|" + "|".join((*cells, update_of(key).value, one.doc)) + "|")
    return "\n".join(lines) + "\n"


# Values that conf/server.properties sets, with reasons.
_EXAMPLES = {
    "group.initial.rebalance.delay.ms": (
        "0",
        "As in Kafka's own file: a first trial does not wait. In production, comment it out.",
    )
}


def render_server_properties() -> str:
    """Return conf/server.properties: every setting with its default, commented out except for examples."""
    lines = [
        "# Settings of sparklog-server, with their defaults. Generated from sparklog_server/settings/.",
        "# sparklog-server --config FILE reads it; flags and SPARKLOG_SERVER_NUM_PARTITIONS=3 (for",
        "# num.partitions) win over it. Unknown keys are refused. Kafka's names mean what they mean in",
        "# Kafka; those that begin with sparklog. are our own.",
    ]
    declared = [field for area in _AREAS.values() for field in dataclasses.fields(area)]
    for one in (field.metadata["setting"] for field in declared):
        unit = f" ({one.unit})" if one.unit else ""
        bounds = one.bounds + unit
        lines += ["", *textwrap.wrap(one.doc, 100, initial_indent="# ", subsequent_indent="# ")]
        lines += [f"# Allowed: {bounds}."] if bounds else []
        lines.append(f"#{one.key}={one.format(one.default)}")
        if one.key in _EXAMPLES:
            value, why = _EXAMPLES[one.key]
            lines += [*textwrap.wrap(why, 100, initial_indent="# ", subsequent_indent="# ")]
            lines.append(f"{one.key}={value}")
    return "\n".join(lines) + "\n"


# --- in force ----------------------------------------------------------------------------------------
#
# The settings in force of a running broker: its own in the root, else those of all brokers, else those of its
# start.
#
# Invariants: invalid settings (of a newer sparklog, or written to the log by other means) are skipped and
#     reported; a broker starts in any case. The order in which interdependent settings were stored does not
#     matter.
# Not here: validation of clients' changes (admin/configs.py), the parts that apply them (root/live_root.py).
# Sources: Kafka DynamicBrokerConfig (the order of precedence; invalid values are ignored).


def config_in_force(
    started_with: ServerConfig, configs: Mapping[str, str], node_id: int
) -> tuple[ServerConfig, dict[str, SparklogError]]:
    """Return the settings in force with the root's settings, and the errors of invalid ones, by key.

    A broker's own settings override those of all brokers before the check: they may depend on each other.
    """
    of_all, own = (
        {name: text for name, text in broker_configs(configs, owner).items() if name in DYNAMIC}
        for owner in (None, node_id)
    )
    config, refused = _with_what_can_be(started_with, of_all | own)
    behind = {name: text for name, text in of_all.items() if name in refused and name in own}
    config, refused_behind = _with_what_can_be(config, behind)
    problems = {broker_key(node_id if name in own else None, name): why for name, why in refused.items()}
    return config, problems | {broker_key(None, name): why for name, why in refused_behind.items()}


def _with_what_can_be(
    config: ServerConfig, values: Mapping[str, str]
) -> tuple[ServerConfig, dict[str, SparklogError]]:
    """Apply valid settings. Refused ones may depend on others: retry them while any are accepted."""
    while True:
        refused: dict[str, SparklogError] = {}
        for name, text in values.items():
            try:
                config = config.with_values({name: text})
            except SparklogError as error:
                refused[name] = error
        if len(refused) == len(values):
            return config, refused
        values = {name: values[name] for name in refused}


def topic_defaults_in_force(configs: Mapping[str, str], node_id: int) -> dict[str, str]:
    """Return the topic defaults in a broker's own settings in the root, by the topics' keys."""
    declared = declared_settings(TopicConfig)
    found = {}
    for name, text in broker_configs(configs, node_id).items():
        key = TOPIC_DEFAULTS.get(name)
        if key is None:
            continue
        with contextlib.suppress(SparklogError):
            declared[key][1].parse(text)
            found[key] = text
    return found
