"""Refusing an action: it does not apply to the image.

Not here: whether that means a corrupt log or a wrong call (log.py decides).
"""


class ActionRefusedError(Exception):
    """An action does not apply to the image; the text says which and why."""


def refuse(reason: str | None, where: str) -> None:
    """ActionRefusedError if there is a reason."""
    if reason is not None:
        raise ActionRefusedError(f"{where}: {reason}")
