"""A base class for context managers with a `close`."""

import abc
from types import TracebackType
from typing import Self


class Closing(abc.ABC):
    """Closed at the end of its `with` block, also after an error."""

    __slots__ = ()

    @abc.abstractmethod
    def close(self) -> None:
        """Release resources; idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
