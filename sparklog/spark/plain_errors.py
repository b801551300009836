"""Errors as Spark's user sees them: one frame of ours above the message, not the way it came from inside.

Spark prints the whole traceback of what its Python workers raise, and what that was raised from. A
SparklogError says itself what is wrong and what to do; 30 lines of our own calls above it hide that. So each
method that Spark calls raises it anew, from None. Any other exception is a fault of ours, and keeps its
traceback.
Concurrency: no state.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from sparklog.errors import SparklogError

C = TypeVar("C", bound=type)


def plain_errors(cls: C) -> C:
    """Class decorator for what Spark calls: of the class's own public methods."""
    for name, member in list(vars(cls).items()):
        if callable(member) and not name.startswith("_"):
            setattr(cls, name, _plainly(member))
    return cls


def _plainly(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            result = method(*args, **kwargs)
        except SparklogError as error:
            raise error.with_traceback(None) from None
        return _rest(result) if isinstance(result, Iterator) else result

    return call


def _rest(results: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from results
    except SparklogError as error:
        raise error.with_traceback(None) from None
