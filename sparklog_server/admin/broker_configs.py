"""Changing the settings of one broker, and those of all, over the network.

A broker is asked for its own, and for those of all: it finds out whether it could run with them before
anything is stored. Others take them up as they see the commit.
Invariants: nothing is stored that is unknown, cannot change while brokers run, or is out of bounds; of what
    clients name only brokers' settings and topics' defaults are touched, not what only the root's owner sets.
    Going back to what was before is always allowed.
Not here: operations on settings (config_increments.py), showing them (config_entries.py).
Sources: Kafka ConfigAdminManager, DynamicBrokerConfig (validateConfigs), DynamicThreadPool.
"""

from collections.abc import Mapping

from sparklog.errors import InvalidRequestError
from sparklog.log.broker_keys import broker_configs, broker_key
from sparklog.log.config import validate_root_configs, validate_topic_configs
from sparklog.log.setting import lookup_setting
from sparklog.metadata import Action, Image, plan_set_configs
from sparklog_server.admin.changes import RefusedError
from sparklog_server.protocol.errors import ErrorCode
from sparklog_server.settings.config import SETTINGS, ServerConfig
from sparklog_server.settings.in_force import config_in_force
from sparklog_server.settings.kafka_only import why_kafka_only
from sparklog_server.settings.setting_names import ROOT_KEYS, root_setting
from sparklog_server.settings.updating import DYNAMIC, TOPIC_DEFAULTS, Update, update_of

Changes = Mapping[str, str | None]
THREADS = "num.io.threads"
MAX_VALUE_LENGTH = 32_767  # of a text in requests before KIP-482
_NAMES = {key: name for name, key in ROOT_KEYS.items()}


def validate_broker_name(node_id: int, name: str) -> None:
    """Refuse another broker's number, and other ways to write this one's; '' is the cluster."""
    if name and not (name.isascii() and name.isdecimal()):
        raise _refused(f"Node id must be an integer, but it is: {name}")
    if name and name != str(node_id):
        raise _refused(f"Unexpected broker id, expected {node_id}, but received {name}")


def cluster_values(configs: Mapping[str, str]) -> dict[str, str]:
    """What a root has for all brokers, by the names that brokers have for it."""
    of_root = {_NAMES[key]: value for key, value in configs.items() if key in _NAMES}
    return of_root | {name: value for name, value in broker_configs(configs, None).items() if name in DYNAMIC}


def plan_one_broker(config: ServerConfig, image: Image, changes: Changes) -> Action | None:
    """Change this broker's own settings."""
    node_id = config.broker.node_id
    given = {name: value for name, value in changes.items() if value is not None}
    for name in given:
        if update_of(name) is Update.CLUSTER_WIDE:
            raise _refused(
                f"Cannot update these configs for a single broker: Set({name}): they are of what all brokers "
                "share; change them for all (kafka-configs --entity-default)"
            )
        _validate_dynamic(name)
    defaults = {TOPIC_DEFAULTS[name]: value for name, value in given.items() if name in TOPIC_DEFAULTS}
    validate_topic_configs(defaults)
    stored = {broker_key(node_id, name): value for name, value in changes.items()}
    _validate_values(config, image, given, stored)
    return plan_set_configs(image, None, that_matter(stored, image.configs))


def plan_all_brokers(config: ServerConfig, image: Image, changes: Changes) -> Action | None:
    """Change the settings of all brokers, which are the root's, and its topics' defaults."""
    given = {name: value for name, value in changes.items() if value is not None}
    for name, value in given.items():
        if name not in ROOT_KEYS:
            _validate_dynamic(name)
        elif name in SETTINGS:
            SETTINGS[name][1].parse(value)  # of a broker, which may be stricter than of a single topic
    validate_root_configs({ROOT_KEYS[name]: value for name, value in given.items() if name in ROOT_KEYS})
    stored = {ROOT_KEYS[name]: value for name, value in changes.items() if name in ROOT_KEYS}
    stored |= {broker_key(None, name): value for name, value in changes.items() if name in DYNAMIC}
    _validate_values(config, image, given, stored)
    return plan_set_configs(image, None, that_matter(stored, image.configs))


def that_matter(changes: Changes, current: Mapping[str, str]) -> dict[str, str | None]:
    """Without deletions of what is not set: they are done already, known or not."""
    return {key: value for key, value in changes.items() if value is not None or key in current}


def _validate_dynamic(name: str) -> None:
    """Refuse what cannot change while brokers run, and what is unknown."""
    if update_of(name) is Update.PER_BROKER:
        return
    if name in SETTINGS:
        raise _refused(f"Cannot update these configs dynamically: Set({name})")
    why = why_kafka_only(name)
    if why is not None:
        raise InvalidRequestError(
            "UNKNOWN_CONFIG",
            f"found {name}, a setting of Kafka's that means nothing here: {why}",
            fix=f"leave {name} out",
        )
    known = {name: (name, root_setting(key)) for name, key in ROOT_KEYS.items()}
    known |= {name: (name, SETTINGS[name][1]) for name in DYNAMIC}
    lookup_setting(name, known, "broker")


def _validate_values(
    config: ServerConfig, image: Image, given: Mapping[str, str], stored: Mapping[str, str | None]
) -> None:
    """Could this broker run with what is given?"""
    for name, value in given.items():
        if len(value) > MAX_VALUE_LENGTH:
            raise _refused(f"{name}: {len(value)} characters, expected at most {MAX_VALUE_LENGTH}")
        if name in DYNAMIC:
            SETTINGS[name][1].parse(value)  # also what this broker has a value of its own for
    if not given:
        return
    kept = {key: value for key, value in image.configs.items() if key not in stored}
    changed = {**kept, **{key: value for key, value in stored.items() if value is not None}}
    node_id = config.broker.node_id
    in_force, known = config_in_force(config, image.configs, node_id)
    to_be, problems = config_in_force(config, changed, node_id)
    for key, problem in problems.items():
        if key in stored or key not in known:
            raise problem
    if THREADS not in given:
        return
    before, after = in_force.broker.num_io_threads, to_be.broker.num_io_threads
    told = f"Dynamic thread count update validation failed for {THREADS}={after}, value should "
    if after < before // 2:
        raise _refused(f"{told}be at least half the current value {before}")
    if after > 2 * before:
        raise _refused(f"{told}not be greater than double the current value {before}")


def _refused(message: str) -> RefusedError:
    return RefusedError(ErrorCode.invalid_request, message)
