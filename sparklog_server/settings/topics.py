"""Settings of topics that a root may say too, where its value wins (config.py, `root_defaults`).

Sources: Kafka ServerLogConfigs, ReplicationConfigs.
"""

import dataclasses

from sparklog.log.setting import setting
from sparklog_server.settings.units import INT_MAX


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """The fields' names are the keys with underscores."""

    auto_create_topics_enable: bool = setting(
        "auto.create.topics.enable",
        default=True,
        doc="""Create a topic when a client first asks for it and allows it. true: nothing to prepare; false:
        a misspelt name is an error. For clients of this broker; a value on the root wins, and is all that
        Spark, Python and the command line know.""",
    )
    num_partitions: int = setting(
        "num.partitions",
        default=1,
        minimum=1,
        maximum=100_000,
        unit="partitions",
        doc="""Partitions of a topic created without saying how many. For clients of this broker; a value on
        the root wins, and is all that Spark, Python and the command line know.""",
    )
    default_replication_factor: int = setting(
        "default.replication.factor",
        default=3,
        minimum=1,
        maximum=100,
        unit="brokers",
        doc="""Among how many brokers leading a partition moves, of topics created without saying how many: as
        many as there are, if those are fewer. It costs nothing, since all have the same storage. A value on
        the root wins.""",
    )
    delete_topic_enable: bool = setting(
        "delete.topic.enable",
        default=True,
        doc="""Let clients delete topics. false: only the embedded client and the command line can.""",
    )
    message_max_bytes: int = setting(
        "message.max.bytes",
        default=1_048_588,
        minimum=0,
        maximum=INT_MAX,
        unit="bytes",
        doc="""Largest record batch, after compression, of topics that do not say max.message.bytes. A
        value on the root wins.""",
    )
