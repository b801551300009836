"""A broker's place: registered for the root, and in charge of its groups and partitions, or not.

In charge while its registration stands as of an image that is new enough. An image may be too old because the
storage is away, or the machine was suspended: then the groups are resigned, since another broker may have
them by now, and taken up again, from the log, when following works again.

1. broker B registers; broker A, on another machine, has the members of a group, and nobody produces to A;
2. A publishes nothing, so that no plan of A meets the registration: A must look at it in what it follows;
3. if A cannot follow, it never sees it: so it stops by itself, broker.session.timeout.ms after the last look.

When its registration ends, a broker was taken for dead: it resigns everything, joins again, and goes on with
what it is given then. Only if its node id has been registered by another process it fails.

Invariants: no answer of a coordinator or leader, but errors, after the image that takes the role away was
    seen, or on an image older than broker.session.timeout.ms.
Not here: how a registration is made (registering.py), publishing, which needs no clock (registration.py),
    following (following.py).
Concurrency: event loop; `is_held` and `current` may be asked in any thread: they look at the newest image,
    shown or not.
After a crash: whoever starts registers anew.
Sources: Kafka BrokerLifecycleManager (broker.session.timeout.ms), GroupCoordinatorService.onResignation;
    docs/adr/0013, docs/adr/0026.
"""

import logging
from collections.abc import Callable, Sequence

from sparklog.errors import FencedError, SparklogError
from sparklog.metadata import Image
from sparklog_server.cluster.assigning import Assigning
from sparklog_server.cluster.registering import Registering
from sparklog_server.cluster.registration import Registration
from sparklog_server.root.live_root import LiveRoot
from sparklog_server.runtime.background import Background
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
        assigning: Assigning,
        settings: BrokerSettings,
        *,
        advertised: Callable[[], Sequence[AdvertisedListener]],
    ) -> None:
        """`advertised`: where clients reach this broker, once its ports are bound."""
        self.node_id = settings.node_id
        self.registration: Registration | None = None
        self._root = root
        self._lifecycle = lifecycle
        self._registering = Registering(root, lifecycle, assigning, settings, advertised=advertised)
        self.heart = self._registering.heart
        self._max_age_ms = settings.broker_session_timeout_ms
        self._background = Background()
        self._has_resigned = self._is_joining_again = self._has_stopped = self._was_old = False
        self._resigned_callbacks: list[Callable[[], None]] = []
        self._resumed_callbacks: list[Callable[[], None]] = []
        root.on_image(self._on_image)  # before anybody acts on an image that takes the role away

    # --- the registration ---------------------------------------------------------------------------

    async def start(self) -> None:
        """Register."""
        self.registration = await self._registering.begin()
        self._root.show()
        self._join_again_if_lost()  # what was shown before the registration was known

    async def hand_over(self, timeout_ms: float) -> None:
        """While clients are still served: have others lead what this broker leads, as far as they can."""
        if self.registration is not None and not self._lifecycle.has_failed:
            await self._registering.hand_over(self.registration, timeout_ms)

    async def stop(self) -> None:
        """End the registration, once this broker writes nothing more, and let another one start."""
        self._has_stopped = True
        self._background.cancel()
        await self._registering.end(self.registration)

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
        """Why the registration is over, if it is."""
        if self.registration is not None:
            try:
                self.registration.validate(self._root.image)
            except FencedError as error:
                return error
        return None

    def on_resigned(self, callback: Callable[[], None]) -> None:
        """Have `callback()` called when it must not answer for groups any more; perhaps more than once."""
        self._resigned_callbacks.append(callback)

    def on_resumed(self, callback: Callable[[], None]) -> None:
        """Have `callback()` called when it may again."""
        self._resumed_callbacks.append(callback)

    def review(self) -> None:
        """Resign the groups, or take them up again, as the image's age and the registration have it."""
        is_old = self.left_ms <= 0
        has_resigned = is_old or self._is_joining_again
        has_become_old, self._was_old = is_old and not self._was_old, is_old  # also while it joins again
        if has_resigned is self._has_resigned and not has_become_old:
            return
        self._has_resigned = has_resigned
        if is_old:
            _log.error("the log could not be followed for %d ms: groups are resigned", self._max_age_ms)
        elif not has_resigned:
            _log.warning("the log can be followed, and the broker is registered: groups are loaded")
        if has_resigned:
            self._resign()
        else:
            for callback in self._resumed_callbacks:
                callback()

    def _resign(self) -> None:
        for callback in self._resigned_callbacks:
            callback()

    def _on_image(self, _old: Image, _new: Image) -> None:
        self._join_again_if_lost()

    def _join_again_if_lost(self) -> None:
        """Or stop, if the place is another's. Asked with each image, and when a registration becomes known:

        1. the broker joins; a controller that finds no sign of life of that registration yet fences it;
        2. that commit is shown before `_registering` returns: the registration of before is known to be lost,
           or there is none yet;
        3. nobody commits anything after it: unless asked again, the broker would lead nothing, and answer
           nobody, until somebody does.
        """
        lost = self.lost()
        if lost is None or self._has_stopped or self._is_joining_again:
            return
        registration = self.current()
        if _is_anothers(self._root.image, registration):
            self._lifecycle.fail(lost)
        elif not self._lifecycle.has_failed:
            _log.error("this broker was fenced, and joins again: %s", lost)
            self._is_joining_again = True
            if self._has_resigned:  # out of touch, it could not tell that others would have the place
                self._resign()
            self.review()
            self._background.spawn(self._join_again())

    async def _join_again(self) -> None:
        try:
            self.registration = await self._registering.again()
        except (SparklogError, OSError) as error:
            self._lifecycle.fail(error)  # the node id is another's, or the root cannot be used any more
            return
        except Exception as error:  # noqa: BLE001 - a fault of ours: who never joins must not live on
            _log.exception("joining again has ended")
            self._lifecycle.fail(error)
            return
        self._is_joining_again = False
        self._root.show()
        self._join_again_if_lost()
        self.review()


def _is_anothers(image: Image, registration: Registration) -> bool:
    """Has another process registered for this node id, and serves by now?"""
    known = image.brokers.get(registration.node_id)
    return known is not None and not known.is_fenced and known.broker_epoch != registration.broker_epoch
