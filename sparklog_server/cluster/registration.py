"""A broker's right to publish, as of an image (joined.py).

Whoever publishes asks for the registration of now, once for each plan: a broker that was fenced may have
joined again meanwhile, under another epoch.

Invariants: what a registration that is over has accepted is not published: `act` and `fenced` raise
    FencedError BROKER_FENCED then, and `may_append` says no.
Not here: whether the broker may answer (membership.py), who leads what (leadership.py).
Concurrency: immutable; any thread.
Sources: docs/adr/0006, docs/adr/0026.
"""

from collections.abc import Sequence
from typing import Protocol

from sparklog.metadata import Action, Image, Plan


class Registration(Protocol):
    """One that was made, and may be over."""

    @property
    def node_id(self) -> int:
        """The broker's number."""

    @property
    def broker_epoch(self) -> int:
        """Which of its registrations this is."""

    def validate(self, image: Image) -> None:
        """Raise FencedError BROKER_FENCED if it is over as of this image."""

    def fenced(self, plan: Plan) -> Plan:
        """The same plan, which applies while this registration stands. Not for appends: see `act`."""

    def act(
        self, image: Image, actions: Sequence[Action], leader_epochs: Sequence[int] = (), /
    ) -> Sequence[Action]:
        """These actions, which apply while this registration stands, and leads what they append to.

        Args:
            leader_epochs: of each extent that they append: in which epoch it was accepted. Whoever calls has
                asked `may_append` for each.

        Raises:
            FencedError: BROKER_FENCED.
        """

    def may_append(self, image: Image, topic_id: str, partition: int, leader_epoch: int, /) -> bool:
        """Does the broker lead the partition in the epoch in which it accepted records for it?"""
