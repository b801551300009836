"""Locks of a forked child: another thread of the parent may have held one, and is not there to release it.

Concurrency: the child has one thread while it is told.
"""

import os
import weakref
from typing import Protocol


class Forked(Protocol):
    """What has a lock, or what was guarded by one."""

    def after_fork_in_child(self) -> None:
        """Begin with a fresh lock, and with nothing that may be half done."""


_told: "weakref.WeakSet[Forked]" = weakref.WeakSet()


def tell_after_fork(one: Forked) -> None:
    """Call its `after_fork_in_child` in each child, for as long as it lives."""
    _told.add(one)


def _after_fork_in_child() -> None:
    for one in list(_told):
        one.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
