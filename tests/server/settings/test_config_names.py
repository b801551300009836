"""The names of settings at the broker and in a root."""

from sparklog.log.config import OWNERS_KEYS, RootConfig, TopicConfig
from sparklog.log.setting import declared_settings
from sparklog_server.settings.updating import BROKER_NAMES, ROOT_KEYS


def test_every_topic_setting_has_one_name_at_the_broker() -> None:
    assert set(BROKER_NAMES) == set(declared_settings(TopicConfig))
    of_roots = set(declared_settings(RootConfig)) - OWNERS_KEYS  # no matter of clients
    assert len(ROOT_KEYS) == len(declared_settings(TopicConfig)) + len(of_roots)
    assert BROKER_NAMES["segment.ms"] == "log.roll.ms"
    assert BROKER_NAMES["min.compaction.lag.ms"] == "log.cleaner.min.compaction.lag.ms"
    assert BROKER_NAMES["cleanup.policy"] == "log.cleanup.policy"
