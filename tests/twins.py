"""Running the pure twins of the compiled loops (sparklog/format/kernels.py) beside them."""

import contextlib
from collections.abc import Iterator

from sparklog.format import kernels


@contextlib.contextmanager
def without_kernels() -> Iterator[None]:
    """Within, nothing compiled is used."""
    library = kernels.use(None)
    try:
        yield
    finally:
        kernels.use(library)
