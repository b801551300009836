"""What is closed at the end of a `with`."""

import abc
from types import TracebackType
from typing import Self


class Closing(abc.ABC):
    """`with` it: closed at the end, however that comes."""

    __slots__ = ()

    @abc.abstractmethod
    def close(self) -> None:
        """Give back what is open; may be called again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
