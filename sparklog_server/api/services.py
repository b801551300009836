"""The services of handlers. No layer below api/ uses all of them: each part gets only its dependencies.

Concurrency: created once, by broker.py.
"""

import asyncio
from dataclasses import dataclass

from sparklog.clock import Clock
from sparklog_server.admin.changes import Changes
from sparklog_server.api.listings import LogDirListing, TopicListing
from sparklog_server.cluster.controller import Controller
from sparklog_server.cluster.leadership import Leadership
from sparklog_server.cluster.membership import Membership
from sparklog_server.fetch.service import FetchService
from sparklog_server.groups.coordinator import GroupCoordinator
from sparklog_server.metrics import Metrics
from sparklog_server.publish.first_batches import FirstBatches
from sparklog_server.publish.produced_batches import TopicRules
from sparklog_server.publish.publisher import ProducerIds, Publisher
from sparklog_server.root.live_root import LiveRoot
from sparklog_server.security.access import Access
from sparklog_server.security.quotas import Quotas
from sparklog_server.security.sasl import Authenticator
from sparklog_server.settings.config import ServerConfig
from sparklog_server.share.coordinator import ShareCoordinator
from sparklog_server.share.service import ShareService
from sparklog_server.transactions.coordinator import TransactionCoordinator


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The parts of one broker.

    Fields:
        searching: the lock of searches with a client's regular expression.
    """

    node_id: int
    config: ServerConfig
    clock: Clock
    metrics: Metrics
    root: LiveRoot
    membership: Membership
    leadership: Leadership
    controller: Controller
    access: Access
    authenticator: Authenticator
    quotas: Quotas
    publisher: Publisher
    topic_rules: TopicRules
    producer_ids: ProducerIds
    first_batches: FirstBatches
    fetches: FetchService
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    shares: ShareService
    share_groups: ShareCoordinator
    changes: Changes
    topic_listing: TopicListing
    log_dirs: LogDirListing
    searching: asyncio.Lock
