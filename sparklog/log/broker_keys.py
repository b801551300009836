"""Settings of brokers, kept among those of their root: under which keys.

`brokers/1/max.connections` is broker 1's; `brokers/default/max.connections` is that of every broker that has
none of its own. A root keeps what brokers were told, and gives it to them when they start. Nobody but a
broker acts on it, and whoever does not know such a key leaves it as it is, so that no document says more than
one of an older version could (adr/0032).
Defaults of topics, and the root's own settings, have no such keys: they are the root's, and count for every
process that uses it (config.py, root_config.py).
Invariants: no key of a topic or of a root has a slash, so that none is taken for a broker's.
Not here: which settings a broker takes (sparklog_server/settings).
Sources: Kafka keeps the same at /config/brokers/<id> and /config/brokers/<default>.
"""

from collections.abc import Mapping

ALL_BROKERS = "default"
_PREFIX = "brokers/"


def broker_key(node_id: int | None, name: str) -> str:
    """The key of a setting of one broker; None: of all that have none of their own."""
    return f"{_prefix(node_id)}{name}"


def is_broker_key(key: str) -> bool:
    """Is it a setting of brokers, whichever?"""
    return key.startswith(_PREFIX)


def broker_configs(configs: Mapping[str, str], node_id: int | None) -> dict[str, str]:
    """Of a root's settings, those of one broker, or of all, by their names."""
    prefix = _prefix(node_id)
    return {
        key.removeprefix(prefix): value for key, value in sorted(configs.items()) if key.startswith(prefix)
    }


def nodes_with_configs(configs: Mapping[str, str]) -> list[int]:
    """The brokers that have settings of their own, by their numbers."""
    found = {key.split("/")[1] for key in configs if is_broker_key(key)}
    return sorted(int(one) for one in found if one.isascii() and one.isdecimal())


def _prefix(node_id: int | None) -> str:
    return f"{_PREFIX}{ALL_BROKERS if node_id is None else node_id}/"
