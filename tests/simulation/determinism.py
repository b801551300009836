"""Takes the machine's randomness away for the time of one history."""

import os
import random
import secrets
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock


@contextmanager
def deterministic(seed: int) -> Iterator[None]:
    """Within: uuids, tokens and generators without a seed follow from `seed` alone."""
    source = random.Random(f"randomness {seed}")

    class SeededRandom(random.Random):
        def __init__(self, x: object = None) -> None:
            super().__init__(source.getrandbits(64) if x is None else x)  # type: ignore[arg-type]

    def random_bytes(count: int) -> bytes:
        return source.randbytes(count)

    def uuid4() -> uuid.UUID:
        return uuid.UUID(bytes=source.randbytes(16), version=4)

    def token_hex(count: int | None = None) -> str:
        return source.randbytes(count or 32).hex()

    with (
        mock.patch.object(random, "Random", SeededRandom),
        mock.patch.object(os, "urandom", random_bytes),
        mock.patch.object(uuid, "uuid4", uuid4),
        mock.patch.object(secrets, "token_hex", token_hex),
    ):
        yield
