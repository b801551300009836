"""What a client may have of a root's transactions: a share for each address, so that none keeps others out.

All of it is in the memory of everyone who uses the root, and has bounds (transaction_values.py). Without
shares a single client could use them up, and every other one would be refused.

    transactional ids    an address may have a quarter of what a root may; for the next one its own that was
                         unused for longest is forgotten
    open transactions    an address may hold a third of the weight that is free, as of network/limits.py:
                         alone a quarter of the bound, and less where several hold much

Invariants: an id is of the address that has used it last at this broker. Brokers do not tell each other, and
    one that starts knows nobody: so a share is what one broker lets a client have.
    A refusal here may rest on an image that is a moment old: it is told as "try again".
Not here: the bounds, and which ids are forgotten (sparklog/metadata/model/transactions.py).
Concurrency: event loop only.
"""

from collections.abc import Collection
from typing import Final

from sparklog.errors import RetriableError
from sparklog.metadata import MAX_ROOT_WEIGHT, MAX_TRANSACTIONAL_IDS, Image

FREE_PARTS: Final = 3  # an address may hold one of so many of what is free
_FEW: Final = 1_000


class ClientShares:
    """See the module's docstring."""

    def __init__(
        self, max_ids: int = MAX_TRANSACTIONAL_IDS // (FREE_PARTS + 1), max_weight: int = MAX_ROOT_WEIGHT
    ) -> None:
        self.max_ids = max_ids
        self.max_weight = max_weight
        self._client_of: dict[str, str] = {}
        self._ids: dict[str, set[str]] = {}

    @property
    def known(self) -> int:
        """How many ids are remembered."""
        return len(self._client_of)

    def note(self, transactional_id: str, client: str, image: Image) -> None:
        """An id is used by a client."""
        before = self._client_of.get(transactional_id)
        if before == client:
            return
        if before is not None:
            self._remove(transactional_id)
        elif len(self._client_of) > 2 * len(image.transactions) + _FEW:
            for gone in [one for one in self._client_of if one not in image.transactions]:
                self._remove(gone)
        self._client_of[transactional_id] = client
        self._ids.setdefault(client, set()).add(transactional_id)

    def ids_to_replace(self, client: str, image: Image) -> Collection[str]:
        """The client's ids, if it has as many as it may; else none."""
        own = self._ids.get(client, ())
        if len(own) < self.max_ids:
            return ()
        for gone in [one for one in own if one not in image.transactions]:
            self._remove(gone)
        own = self._ids.get(client, ())
        return tuple(own) if len(own) >= self.max_ids else ()

    def refusal(self, client: str, image: Image, weight: int) -> RetriableError | None:
        """Why a client may not add so much to open transactions; None: it may."""
        if not weight:
            return None
        free = self.max_weight - image.transactions.weight - weight
        if FREE_PARTS * (image.transactions.weight + weight) <= free:
            return None  # whoever holds it
        known = (image.transactions.get(one) for one in self._ids.get(client, ()))
        held = sum(one.weight for one in known if one is not None)
        if FREE_PARTS * (held + weight) <= free:
            return None
        return RetriableError(
            "TRANSACTIONS_FULL",
            f"client {client}: found {held} bytes in its open transactions and {weight} more to be added, "
            f"expected at most {max(0, free // FREE_PARTS)}: a third of what is free in the root",
            fix="end transactions that are open (`sparklog transactions list`), then try again",
        )

    def _remove(self, transactional_id: str) -> None:
        client = self._client_of.pop(transactional_id)
        ids = self._ids[client]
        ids.discard(transactional_id)
        if not ids:
            del self._ids[client]
