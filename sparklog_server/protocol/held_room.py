"""Room in a budget that one request holds: its bytes, its work or its answer; given back once.

Concurrency: event loop only.
"""

from collections.abc import Callable
from typing import Protocol


class Budget(Protocol):
    """network/limits.py ByteBudget."""

    def try_take(self, size: int, owner: str = "") -> bool: ...

    async def take(self, holder: object, size: int, owner: str = "") -> None: ...

    def overdraw(self, size: int, owner: str = "") -> None: ...

    def give_back(self, holder: object, size: int, owner: str = "") -> None: ...


class HeldRoom:
    """See the module's docstring.

    Args:
        owner: an address, which has a share of the budget.
        before_waiting: is called where there is no room at once.
    """

    __slots__ = ("_before_waiting", "_budget", "_owner", "_taken")

    def __init__(
        self, budget: Budget, owner: str = "", before_waiting: Callable[[], None] | None = None
    ) -> None:
        self._budget = budget
        self._owner = owner
        self._before_waiting = before_waiting
        self._taken = 0

    @property
    def is_held(self) -> bool:
        """May others wait for it?"""
        return self._taken > 0

    async def take(self, size: int) -> bool:
        """Take so much more. Where it has to wait, it first gives back what others must not wait for.

        Returns: True if it had to wait.
        """
        waits = not self._budget.try_take(size, self._owner)
        if waits:
            self.give_way()
            await self._budget.take(self, size, self._owner)
        self._taken += size
        return waits

    def give_way(self) -> None:
        """Whose room this is begins to wait: what others must not wait for is given back."""
        if self._before_waiting is not None:
            self._before_waiting()

    def raise_to(self, size: int) -> None:
        """It has turned out to be more than was taken; it is there already, so it does not wait."""
        if size > self._taken:
            self._budget.overdraw(size - self._taken, self._owner)
            self._taken = size

    def release(self) -> None:
        """It is answered, or never will be; may be called again."""
        taken, self._taken = self._taken, 0
        if taken:
            self._budget.give_back(self, taken, self._owner)
