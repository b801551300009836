"""The broker's role: may it answer for the root, and coordinate groups?

While it is the registered broker as of an image that is new enough. A newer registration ends the role at
once and for ever: the broker fails with what a refused commit would have told it. An image may be too old
because the storage is away, or the machine was suspended: then the groups are resigned, since another broker
may have them by now, and taken up again, from the log, when following works again.

1. broker B registers; broker A, on another machine, has the members of a group, and nobody produces to A;
2. A publishes nothing, so that no plan of A meets the registration: A must look at it in what it follows;
3. if A cannot follow, it never sees it: so it stops by itself, broker.session.timeout.ms after the last look.

Invariants: no answer of a coordinator or leader, but errors, after the image that takes the role away was
    seen, or on an image older than broker.session.timeout.ms.
Not here: publishing, which needs no clock (publish/broker_epoch.py); following (broker.py).
Concurrency: event loop; `is_held` may be asked in any thread, and looks at the newest image, shown or not.
After a crash: whoever starts registers anew.
Sources: Kafka BrokerLifecycleManager (broker.session.timeout.ms), GroupCoordinatorService.onResignation;
    docs/adr/0013.
"""

import logging
from typing import TYPE_CHECKING

from sparklog.errors import FencedError

if TYPE_CHECKING:
    from sparklog_server.broker import Broker

_log = logging.getLogger("sparklog_server")


class Role:
    """broker.role"""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._max_age_ms = broker.config.broker.broker_session_timeout_ms
        self._has_resigned = False

    @property
    def is_held(self) -> bool:
        """May requests be answered for the root, as of the newest image?"""
        return self.lost() is None and self.left_ms > 0

    @property
    def left_ms(self) -> int:
        """How long the image stays new enough, if nobody looks again."""
        return self._max_age_ms - self._broker.log.metadata.image_age_ms

    def lost(self) -> FencedError | None:
        """Why it is over: another broker serves the root."""
        epoch = self._broker.publisher.epoch
        if epoch is not None:
            try:
                epoch.validate(self._broker.image)
            except FencedError as error:
                return error
        return None

    def review(self) -> None:
        """Resign the groups, or take them up again, as the image's age has it."""
        has_resigned = self.left_ms <= 0
        if has_resigned is self._has_resigned:
            return
        self._has_resigned = has_resigned
        if has_resigned:
            _log.error("the log could not be followed for %d ms: groups are resigned", self._max_age_ms)
            self._broker.groups.release()
        else:
            _log.warning("the log can be followed again: groups are loaded")
            self._broker.groups.resume()
