"""The settings in force of a running broker: its own in the root, else those of all brokers, else what it was
started with.

Invariants: what cannot be (a newer sparklog's, or somebody's who wrote to the log by himself) is passed over
    and told of; a broker starts in any case. In which order settings that need each other were stored is no
    matter.
Not here: who may store what (admin/broker_configs.py), who takes it up (root/settings_in_force.py).
Sources: Kafka DynamicBrokerConfig (the order of precedence; invalid values are ignored).
"""

import contextlib
from collections.abc import Mapping

from sparklog.errors import SparklogError
from sparklog.log.broker_keys import broker_configs, broker_key
from sparklog.log.config import TopicConfig
from sparklog.log.setting import declared_settings
from sparklog_server.settings.config import ServerConfig
from sparklog_server.settings.updating import DYNAMIC, TOPIC_DEFAULTS


def config_in_force(
    started_with: ServerConfig, configs: Mapping[str, str], node_id: int
) -> tuple[ServerConfig, dict[str, SparklogError]]:
    """The settings in force with these of the root, and why others of those cannot be, by their keys.

    A broker's own are laid over those of all before it is asked what can be: they may need each other.
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
    """What is refused may need another one of them: it is tried again, as long as any were taken."""
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
