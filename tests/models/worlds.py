"""What the tests of all models do: small worlds completely, larger ones up to a number, and the mutants.

SPARKLOG_MODEL_STATES explores the larger worlds as well, up to so many states each (make chaos).
"""

import os
from collections.abc import Callable

from tests.models.explorer import Model, explore

STATES = int(os.environ.get("SPARKLOG_MODEL_STATES", "0"))


def check_nothing_is_found(model: Model, name: str, report: Callable[[str], None], *, is_large: bool) -> None:
    """Report the number of states; a small world has to be explored completely."""
    result = explore(model, max_states=STATES if is_large else 1 << 62)
    report(f"{type(model).__name__.lower()}, {name}: {result}")
    assert result.promise is None, str(result)
    assert result.is_complete or is_large


def check_found(model: Model, promise: str) -> None:
    """A missing safeguard shows as the breach of this promise."""
    result = explore(model)
    print(result)
    assert result.promise is not None, str(result)
    assert result.promise.startswith(f"{promise}: "), str(result)
