"""Settings that are kept but not acted on yet: retention and compaction. Whoever sets one is told.

They are not refused: Kafka Connect, Streams, MirrorMaker and topic operators set them on every topic that
they make. But they promise that records go, and nothing removes records in this version; so each is marked
where it is declared (config.py), and the promise is taken back wherever it is set: in the documentation,
in a warning on create and alter, and by `sparklog doctor`.
Not here: settings without effect that promise nothing (preallocate and the like, config.py).
"""

import logging
from collections.abc import Iterable, Mapping

from sparklog.log.config import TopicConfig
from sparklog.log.setting import declared_settings
from sparklog.metadata import Action, CreateTopic, Image, SetConfigs

_NO_LIMIT = {"retention.ms": "-1", "retention.bytes": "-1"}
_log = logging.getLogger(__name__)


def not_acted_on(configs: Mapping[str, str | None]) -> list[str]:
    """Those of the settings that ask for the removal of records, as key=value."""
    declared = declared_settings(TopicConfig)
    return [
        f"{key}={value}"
        for key, value in sorted(configs.items())
        if key in declared
        and not declared[key][1].acted_on
        and value is not None
        and value.strip() != _NO_LIMIT.get(key)
    ]


def warn_of_settings(actions: Iterable[Action], image: Image) -> None:
    """Say which settings of these (published) actions have no effect yet."""
    for action in actions:
        if not isinstance(action, CreateTopic | SetConfigs):
            continue
        settings = not_acted_on(action.configs)
        if settings:
            _log.warning(
                "%s: %s: kept, but not acted on in this version: no records are removed, files only grow",
                _name_of(action, image),
                ", ".join(settings),
            )


def _name_of(action: CreateTopic | SetConfigs, image: Image) -> str:
    if isinstance(action, CreateTopic):
        return f"topic {action.name!r}"
    if action.topic_id is None:
        return "root"
    topic = image.topic_by_id.get(action.topic_id)
    return f"topic {action.topic_id if topic is None else topic.name!r}"
