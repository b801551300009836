"""Settings of the controller: when leaders go back to the brokers that are to lead.

Sources: Kafka ReplicationConfigs.
"""

import dataclasses

from sparklog.log.setting import setting
from sparklog_server.settings.units import INT_MAX


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """The fields' names are the keys with underscores."""

    auto_leader_rebalance_enable: bool = setting(
        "auto.leader.rebalance.enable",
        default=True,
        doc="""Once in a while, partitions are led again by the first of their replicas, where others came to
        lead too many. false: until somebody asks for it (ElectLeaders). The controller's value counts.""",
    )
    leader_imbalance_per_broker_percentage: int = setting(
        "leader.imbalance.per.broker.percentage",
        default=10,
        minimum=0,
        maximum=100,
        unit="percent",
        doc="""How many of the partitions that a broker is the first replica of others may lead, before
        leaders go back. Lower: load is spread better; higher: leaders move less often.""",
    )
    leader_imbalance_check_interval_seconds: int = setting(
        "leader.imbalance.check.interval.seconds",
        default=300,
        minimum=1,
        maximum=INT_MAX,
        unit="seconds",
        doc="""How often the controller looks whether leaders are to go back.""",
    )
