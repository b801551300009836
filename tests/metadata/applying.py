"""Images after actions."""

from collections.abc import Callable

from sparklog.metadata import (
    Action,
    DraftExtent,
    Image,
    Topic,
    new_id,
)
from sparklog.metadata.model.actions import apply_actions

Draft = Callable[..., DraftExtent]
Create = Callable[..., Topic]
Append = Callable[..., Image]


def applied(image: Image, *actions: Action | None) -> Image:
    done = [action for action in actions if action is not None]
    return apply_actions(image, done, commit=image.commit + 1, commit_uuid=new_id())


def some(action: Action | None) -> list[Action]:
    assert action is not None
    return [action]
