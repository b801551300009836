"""A broker's place: registered for the root, and in charge of its groups and partitions, or not.

In charge while it is the registered broker as of an image that is new enough. A newer registration ends that
at once and for ever: the broker fails with what a refused commit would have told it. An image may be too old
because the storage is away, or the machine was suspended: then the groups are resigned, since another broker
may have them by now, and taken up again, from the log, when following works again.

1. broker B registers; broker A, on another machine, has the members of a group, and nobody produces to A;
2. A publishes nothing, so that no plan of A meets the registration: A must look at it in what it follows;
3. if A cannot follow, it never sees it: so it stops by itself, broker.session.timeout.ms after the last look.

Invariants: no answer of a coordinator or leader, but errors, after the image that takes the role away was
    seen, or on an image older than broker.session.timeout.ms.
Not here: publishing, which needs no clock (alone.py); following (following.py).
Concurrency: event loop; `is_held` may be asked in any thread, and looks at the newest image, shown or not.
After a crash: whoever starts registers anew.
Sources: Kafka BrokerLifecycleManager (broker.session.timeout.ms), GroupCoordinatorService.onResignation;
    docs/adr/0013.
"""

import logging
from collections.abc import Callable, Sequence

from sparklog.errors import FencedError
from sparklog.metadata import BrokerListener, Image
from sparklog_server.cluster.alone import Alone
from sparklog_server.cluster.registration import Registration
from sparklog_server.cluster.root_lock import RootLock
from sparklog_server.root.live_root import LiveRoot
from sparklog_server.runtime.lifecycle import Lifecycle
from sparklog_server.settings.addresses import AdvertisedListener
from sparklog_server.settings.broker import BrokerSettings

_log = logging.getLogger("sparklog_server")


class Membership:
    """See the module's docstring."""

    def __init__(
        self,
        root: LiveRoot,
        lifecycle: Lifecycle,
        settings: BrokerSettings,
        *,
        advertised: Callable[[], Sequence[AdvertisedListener]],
    ) -> None:
        """`advertised`: where clients reach this broker, once its ports are bound."""
        self.node_id = settings.node_id
        self.registration: Registration | None = None
        self._root = root
        self._lifecycle = lifecycle
        self._advertised = advertised
        self._max_age_ms = settings.broker_session_timeout_ms
        self._lock: RootLock | None = None
        self._has_resigned = False
        self._resigned_callbacks: list[Callable[[], None]] = []
        self._resumed_callbacks: list[Callable[[], None]] = []
        root.on_image(self._on_image)  # before anybody acts on an image that takes the role away

    # --- the registration ---------------------------------------------------------------------------

    async def start(self) -> None:
        """Take the root over."""
        root = self._root
        listeners = tuple(BrokerListener(host=one.host, port=one.port) for one in self._advertised())
        names = ", ".join(f"{one.host}:{one.port}" for one in listeners)
        self._lock = RootLock.acquire(root.store, names)
        self.registration = await root.run(Alone.register, root.metadata, self.node_id, listeners)
        _log.info("registered as broker %d with epoch %d", self.node_id, self.registration.broker_epoch)
        root.show()

    async def stop(self) -> None:
        """Let another broker start, once this one writes nothing more."""
        await self._root.finish_upkeep()
        if self._lock is not None:
            self._lock.release()

    def current(self) -> Registration:
        """The registration of now, for one plan. Any thread."""
        registration = self.registration
        assert registration is not None, "nothing is published before the start"
        return registration

    @property
    def is_registered(self) -> bool:
        """Does the registration stand, as far as is known here?"""
        return self.registration is not None and self.lost() is None

    # --- the role -----------------------------------------------------------------------------------

    @property
    def is_in_charge(self) -> bool:
        """May it answer for groups and partitions now?"""
        return not self._lifecycle.has_failed and self.is_held

    @property
    def is_held(self) -> bool:
        """May requests be answered for the root, as of the newest image?"""
        return self.lost() is None and self.left_ms > 0

    @property
    def left_ms(self) -> int:
        """How long the image stays new enough, if nobody looks again."""
        return self._max_age_ms - self._root.metadata.image_age_ms

    def lost(self) -> FencedError | None:
        """Why it is over: another broker serves the root."""
        if self.registration is not None:
            try:
                self.registration.validate(self._root.image)
            except FencedError as error:
                return error
        return None

    def on_resigned(self, callback: Callable[[], None]) -> None:
        """Have `callback()` called when the image has become too old to answer for groups."""
        self._resigned_callbacks.append(callback)

    def on_resumed(self, callback: Callable[[], None]) -> None:
        """Have `callback()` called when it is new enough again."""
        self._resumed_callbacks.append(callback)

    def review(self) -> None:
        """Resign the groups, or take them up again, as the image's age has it."""
        has_resigned = self.left_ms <= 0
        if has_resigned is self._has_resigned:
            return
        self._has_resigned = has_resigned
        if has_resigned:
            _log.error("the log could not be followed for %d ms: groups are resigned", self._max_age_ms)
        else:
            _log.warning("the log can be followed again: groups are loaded")
        for callback in self._resigned_callbacks if has_resigned else self._resumed_callbacks:
            callback()

    def _on_image(self, _old: Image, _new: Image) -> None:
        lost = self.lost()
        if lost is not None:
            self._lifecycle.fail(lost)
