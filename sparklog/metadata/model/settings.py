"""Settings of topics and of the root: set_configs.

Invariants: a setting has a name, and its value is text.
Not here: what settings mean, and which there are (log/config.py).
"""

from collections.abc import Mapping
from typing import Any

from sparklog.errors import InvalidRequestError
from sparklog.metadata.model.action import ActionBase, refuse
from sparklog.metadata.model.draft import ImageDraft
from sparklog.metadata.model.image import Image


class SetConfigs(ActionBase, tag="set_configs", frozen=True, kw_only=True):
    """Settings of a topic, or of the root when topic_id is null; null deletes a setting."""

    configs: dict[str, str | None]
    topic_id: str | None = None

    @property
    def frees_space(self) -> bool:
        """A retention, or the note of a vacuum."""
        return True


def why_illegal_configs(configs: Mapping[str, str | None]) -> str | None:
    """Settings have names."""
    return "a setting has an empty name" if "" in configs else None


def set_configs(draft: ImageDraft, action: SetConfigs) -> None:
    """The effect: what is not mentioned stays."""
    refuse(why_illegal_configs(action.configs), "settings")
    configs = draft.configs if action.topic_id is None else draft.topic(action.topic_id).configs
    for key, value in action.configs.items():
        if value is None:
            configs.pop(key, None)
        else:
            configs[key] = value


def plan_set_configs(image: Image, name: str | None, configs: Mapping[str, str | None]) -> SetConfigs | None:
    """Set (text) or delete (None) settings of a topic, or of the root (name None); None: nothing to do."""
    topic = None if name is None else image.topic(name)
    current = image.configs if topic is None else topic.configs
    validate_configs(configs)
    changed = {key: value for key, value in configs.items() if current.get(key) != value}
    if not changed:
        return None
    return SetConfigs(topic_id=None if topic is None else topic.topic_id, configs=changed)


def validate_configs(configs: Mapping[Any, Any]) -> None:
    """Raise InvalidRequestError INVALID_TOPIC_CONFIG for what a caller hands us that is no text."""
    reason = why_illegal_configs(configs)
    if reason is None:
        for key, value in configs.items():
            if not isinstance(key, str) or not isinstance(value, str | None):
                reason = f"setting {key!r} is {type(value).__name__}, expected text"
    if reason is not None:
        raise InvalidRequestError(
            "INVALID_TOPIC_CONFIG", reason, fix="Give settings as text, for instance '604800000'"
        )
