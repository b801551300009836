"""Threads for the slow steps of authentication: handshakes, checks of passwords, checks of tokens.

They are used for nothing else: clients that nobody knows yet keep neither the event loop nor the threads of
the storage busy. OpenSSL and hashlib release the interpreter's lock meanwhile. Checks of tokens have threads
of their own, for they may wait for an identity provider's keys, for which no handshake and no password waits.
Concurrency: `run` and `run_token` on the event loop.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
THREADS = 2
TOKEN_THREADS = (
    12  # mostly waiting; as many as may be checked at a time (sasl.py), so none waits for a thread
)


class CryptoThreads:
    """See the module's docstring. Threads start when they are needed."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="authentication")
        self._token_pool = ThreadPoolExecutor(TOKEN_THREADS, thread_name_prefix="tokens")

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *args)

    async def run_token(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function that may wait for an identity provider in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._token_pool, function, *args)

    async def start(self) -> None:
        """Nothing to do: a component of the broker."""

    async def stop(self) -> None:
        """End the threads; what is queued is dropped."""
        for pool in (self._pool, self._token_pool):
            pool.shutdown(wait=False, cancel_futures=True)
