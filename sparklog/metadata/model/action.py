"""What all actions have in common: their form in a document, and how one that breaks a rule is refused.

Invariants: an action names topics by id, so that it can never apply to a namesake created later.
Format: each action is a JSON object with its name under "type"; fields with default values are left out.
Not here: the kinds of actions (their subjects' modules, actions.py); whether a refusal means a corrupt log or
a wrong call (log.py decides).
Sources: FORMAT.md#metadata-log.
"""

import msgspec

from sparklog.errors import InvalidRequestError


class ActionBase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One thing that a commit says."""

    @property
    def frees_space(self) -> bool:
        """True if files may go because of it, or of a setting: on a full disk it has a reserve."""
        return False

    @property
    def extent_count(self) -> int:
        """How many extents it appends, or stages."""
        return 0

    @property
    def replayed_extents(self) -> int:
        """To apply it takes as long as to append so many extents, about."""
        return self.extent_count


class ActionRefusedError(Exception):
    """An action does not apply to the image; the text says which and why."""


def refuse(reason: str | None, where: str) -> None:
    """ActionRefusedError if there is a reason."""
    if reason is not None:
        raise ActionRefusedError(f"{where}: {reason}")


def invalid_plan(problem: str) -> InvalidRequestError:
    """The error for a caller who asks for what no action may say."""
    return InvalidRequestError("INVALID_ACTIONS", problem, fix="Fix the call; nothing was changed")
