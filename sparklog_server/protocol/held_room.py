"""Room in a budget that one request holds: taken once, given back once.

Concurrency: event loop only.
"""

from typing import Protocol


class Budget(Protocol):
    """network/limits.py ByteBudget."""

    async def take(self, holder: object, size: int, owner: str = "") -> None: ...

    def give_back(self, holder: object, size: int, owner: str = "") -> None: ...


class HeldRoom:
    """See the module's docstring; `owner`: an address, which has a share of the budget."""

    __slots__ = ("_budget", "_owner", "_taken")

    def __init__(self, budget: Budget, owner: str = "") -> None:
        self._budget = budget
        self._owner = owner
        self._taken = 0

    @property
    def is_held(self) -> bool:
        """May others wait for it?"""
        return self._taken > 0

    async def take(self, size: int) -> None:
        """Wait until there is so much."""
        await self._budget.take(self, size, self._owner)
        self._taken = size

    def release(self) -> None:
        """It is answered, or never will be; may be called again."""
        taken, self._taken = self._taken, 0
        if taken:
            self._budget.give_back(self, taken, self._owner)
