"""Settings of transactions.

producer.id.expiration.ms is one of maintenance (maintenance.py), as forgetting producers is.
Sources: Kafka TransactionStateManagerConfig.
"""

import dataclasses

from sparklog.log.setting import setting
from sparklog_server.settings.units import INT_MAX


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """The fields' names are the keys with underscores, or shorter."""

    max_timeout_ms: int = setting(
        "transaction.max.timeout.ms",
        default=900_000,
        minimum=1,
        maximum=INT_MAX,
        unit="ms",
        doc="""Longest time-out that a producer may ask for its transactions; more is refused
        (INVALID_TRANSACTION_TIMEOUT). Longer: slow jobs get through; shorter: what a producer that is gone
        has staged takes space for less long. Nobody waits for an open transaction in either case.""",
    )
    id_expiration_ms: int = setting(
        "transactional.id.expiration.ms",
        default=604_800_000,
        minimum=1,
        maximum=INT_MAX,
        unit="ms",
        doc="""A transactional id that is not used for so long is forgotten; its producer is fenced no more,
        and has to be initialised again. Ids with an open transaction stay. Longer: producers may stay away
        longer; shorter: less to remember where each job has an id of its own. A value on the root wins, and
        can be changed while brokers run.""",
    )
    abort_timed_out_interval_ms: int = setting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        default=10_000,
        minimum=1,
        maximum=INT_MAX,
        unit="ms",
        doc="""How often the controller looks for transactions past their time-out, aborts them, and fences
        their producers. Shorter: sooner; longer: fewer looks.""",
    )
    remove_expired_interval_ms: int = setting(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        default=3_600_000,
        minimum=1,
        maximum=INT_MAX,
        unit="ms",
        doc="""How often the controller looks for transactional ids to forget. Shorter: sooner; longer: fewer
        looks.""",
    )
