"""What may be produced to a topic, and its settings in force: parsed once, kept while they are the same.

Invariants: an answer is that of the newest image's settings; at most MAX_REMEMBERED topics are remembered.
Not here: what the rules mean (produced_batches.py).
Concurrency: any thread. Handlers ask on the loop, bundles are written by the publisher's thread; entries
    are replaced, never changed, so that at worst both parse the same.
"""

from sparklog.log.config import TopicConfig
from sparklog.metadata import Topic
from sparklog_server.publish.produced_batches import BatchRules
from sparklog_server.root.live_root import LiveRoot

MAX_REMEMBERED = 10_000


class TopicRules:
    """See the module's docstring."""

    def __init__(self, root: LiveRoot, *, max_decompressed_bytes: int) -> None:
        self._root = root
        self._max_decompressed_bytes = max_decompressed_bytes
        self._configs: dict[str, tuple[object, object, TopicConfig]] = {}
        self._rules: dict[str, tuple[TopicConfig, BatchRules]] = {}

    def rules_of(self, topic: Topic) -> BatchRules:
        """What may be produced to a topic."""
        config = self.config_of(topic)
        known = self._rules.get(topic.topic_id)
        if known is None or known[0] is not config:
            if len(self._rules) > MAX_REMEMBERED:
                self._rules.clear()
            rules = BatchRules.of(config, self._max_decompressed_bytes)
            known = self._rules[topic.topic_id] = (config, rules)
        return known[1]

    def config_of(self, topic: Topic) -> TopicConfig:
        """A topic's settings in force."""
        image = self._root.image  # once: what is remembered is of these settings
        root = image.configs
        known = self._configs.get(topic.topic_id)
        if known is not None and known[0] == topic.configs and known[1] == root:
            return known[2]
        config = self._root.topic_config(topic, image)
        if len(self._configs) > MAX_REMEMBERED:
            self._configs.clear()
        self._configs[topic.topic_id] = (topic.configs, root, config)
        return config
