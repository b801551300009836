"""Locks of a forked child: a thread of the parent may have held one, and cannot release it in the child.

Concurrency: the child is single-threaded while the callbacks run.
"""

import os
import weakref
from typing import Protocol


class Forked(Protocol):
    """An object with a lock, or with state that a lock guards."""

    def after_fork_in_child(self) -> None:
        """Replace the lock, and drop state that may be half updated."""


_notified: "weakref.WeakSet[Forked]" = weakref.WeakSet()


def notify_after_fork(forked: Forked) -> None:
    """Call `after_fork_in_child` of an object in each child, as long as the object lives."""
    _notified.add(forked)


def _after_fork_in_child() -> None:
    for forked in list(_notified):
        forked.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
