"""What the root says of this broker's settings, taken up while it runs.

Invariants: `current` is as the newest image that was shown says; who listens is told when it changes, and
    asks `current` for what was so before. What cannot be is told of once, and passed over.
Not here: which settings can change (settings/updating.py), changing them (admin/), topics' (live_root.py).
Concurrency: changes on the event loop; `current` may be asked in any thread.
After a crash: the root has them; a broker that starts reads them before it makes its parts.
Sources: Kafka DynamicBrokerConfig, DynamicConfigPublisher.
"""

import logging
from collections.abc import Callable

from sparklog.metadata import Image
from sparklog_server.root.live_root import LiveRoot
from sparklog_server.settings.config import ServerConfig
from sparklog_server.settings.in_force import config_in_force
from sparklog_server.settings.updating import DYNAMIC

_log = logging.getLogger("sparklog_server")


class SettingsInForce:
    """See the module's docstring."""

    def __init__(self, started_with: ServerConfig, root: LiveRoot) -> None:
        self._started_with = started_with
        self._callbacks: list[Callable[[ServerConfig], None]] = []
        self._told: set[str] = set()
        self.current = self._of(root.image)
        root.on_image(self._look)

    def on_change(self, callback: Callable[[ServerConfig], None]) -> None:
        """Have `callback(settings)` called on the loop with settings that are others than before."""
        self._callbacks.append(callback)

    def _look(self, old: Image, new: Image) -> None:
        if new.configs == old.configs:
            return
        before, self.current = self.current, self._of(new)
        changed = [name for name in sorted(DYNAMIC) if before.text_of(name) != self.current.text_of(name)]
        if not changed:
            return
        _log.info("settings: %s", ", ".join(f"{name}={self.current.text_of(name)}" for name in changed))
        for callback in self._callbacks:
            callback(self.current)

    def _of(self, image: Image) -> ServerConfig:
        config, problems = config_in_force(
            self._started_with, image.configs, self._started_with.broker.node_id
        )
        told = {str(problem) for problem in problems.values()}
        for problem in sorted(told - self._told):
            _log.warning("a setting that the root has for brokers is passed over: %s", problem)
        self._told = told
        return config
