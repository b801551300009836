"""The settings in force of a running broker: its own in the root, else those of all brokers, else what it was
started with.

Invariants: what cannot be (a newer sparklog's, or somebody's who wrote to the log by himself) is passed over
    and told of; a broker starts in any case.
Not here: who may store what (admin/broker_configs.py), who takes it up (root/settings_in_force.py).
Sources: Kafka DynamicBrokerConfig (the order of precedence; invalid values are ignored).
"""

import contextlib
from collections.abc import Mapping

from sparklog.errors import SparklogError
from sparklog.log.broker_keys import broker_configs
from sparklog.log.config import TopicConfig
from sparklog.log.setting import declared_settings
from sparklog_server.settings.config import ServerConfig
from sparklog_server.settings.updating import DYNAMIC, TOPIC_DEFAULTS


def config_in_force(
    started_with: ServerConfig, configs: Mapping[str, str], node_id: int
) -> tuple[ServerConfig, list[SparklogError]]:
    """The settings in force with these of the root, and what of those cannot be."""
    config = started_with
    problems: list[SparklogError] = []
    for owner in (None, node_id):
        for name, text in broker_configs(configs, owner).items():
            if name not in DYNAMIC:
                continue
            try:
                config = config.with_values({name: text})
            except SparklogError as error:
                problems.append(error)
    return config, problems


def topic_defaults_in_force(configs: Mapping[str, str], node_id: int) -> dict[str, str]:
    """What a broker's own settings in the root say of topics, by the topics' keys."""
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
