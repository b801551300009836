"""Threads for the slow steps of authentication: handshakes, checks of passwords, checks of tokens.

They are few, and used for nothing else: clients that nobody knows yet keep neither the event loop nor the
threads of the storage busy. OpenSSL and hashlib release the interpreter's lock meanwhile.
Concurrency: `run` on the event loop.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
THREADS = 2


class CryptoThreads:
    """See the module's docstring. Threads start when they are needed."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="authentication")

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *args)

    async def start(self) -> None:
        """Nothing to do: a component of the broker."""

    async def stop(self) -> None:
        """End the threads; what is queued is dropped."""
        self._pool.shutdown(wait=False, cancel_futures=True)
