"""Settings that promise that records go, in a root that does not let them go by themselves. Whoever sets one
is told.

They are not refused: Kafka Connect, Streams, MirrorMaker and topic operators set them on every topic that
they make. But in a root that was made before anybody acted on them, records past their retention go only when
somebody runs `sparklog expire`, and those that others have superseded when somebody runs `sparklog compact`,
until its owner agrees to more (docs/adr/0023). So each is marked where it is declared (config.py), and the
promise is taken back where it is set in such a root: in a warning on create and alter, and by `sparklog
doctor`.
Not here: settings without effect that promise nothing (preallocate and the like, config.py).
"""

import logging
from collections.abc import Iterable, Mapping

from sparklog.log.config import TopicConfig
from sparklog.log.root_config import AUTOMATIC_REMOVAL_KEY, RootConfig
from sparklog.log.setting import ActedOn, declared_settings
from sparklog.metadata import Action, CreateTopic, Image, SetConfigs

# These values ask for nothing by themselves.
_NO_LIMIT = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}
_KEPT = f"kept, but not acted on by itself, since this root has no {AUTOMATIC_REMOVAL_KEY}=true"
_CONSEQUENCES = {
    ActedOn.BY_EXPIRE: f"{_KEPT}: run `sparklog expire`",
    ActedOn.BY_COMPACT: f"{_KEPT}: run `sparklog compact`",
}
_log = logging.getLogger(__name__)


def not_acted_on(configs: Mapping[str, str | None]) -> dict[str, list[str]]:
    """Those of the settings that ask for the removal of records, as key=value, by what becomes of them."""
    declared = declared_settings(TopicConfig)
    found: dict[str, list[str]] = {}
    for key, value in sorted(configs.items()):
        if key not in declared or value is None or value.strip() == _NO_LIMIT.get(key):
            continue
        acted_on = declared[key][1].acted_on
        if acted_on in _CONSEQUENCES:
            found.setdefault(_CONSEQUENCES[acted_on], []).append(f"{key}={value}")
    return found


def warn_of_settings(actions: Iterable[Action], image: Image) -> None:
    """Say which settings of these (published) actions have no effect by themselves."""
    if RootConfig.parse(image.configs).automatic_removal:
        return
    for action in actions:
        if not isinstance(action, CreateTopic | SetConfigs):
            continue
        for consequence, settings in not_acted_on(action.configs).items():
            _log.warning("%s: %s: %s", _name_of(action, image), ", ".join(settings), consequence)


def _name_of(action: CreateTopic | SetConfigs, image: Image) -> str:
    if isinstance(action, CreateTopic):
        return f"topic {action.name!r}"
    if action.topic_id is None:
        return "root"
    topic = image.topic_by_id.get(action.topic_id)
    return f"topic {action.topic_id if topic is None else topic.name!r}"
