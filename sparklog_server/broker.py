"""The broker: creates, connects, starts and stops its components.

Order: components start before clients are accepted, and stop after the last answer, in reverse order.
Invariants: a component gets the concrete components below it; notifications upwards are callbacks, passed to
    the constructor or registered (`on_image`, `on_failed`). Only running.py imports this module.
Not here: the components' work (their modules), states and failing (runtime/lifecycle.py).
Concurrency: the event loop owns everything here.
After a crash: start again; the log is as committed.
Sources: Kafka BrokerServer; docs/design.md.
"""

import asyncio
import logging
from typing import Protocol

from sparklog.client import SparkLog
from sparklog.clock import Clock
from sparklog_server.admin.changes import Changes
from sparklog_server.api.listings import LogDirListing, TopicListing
from sparklog_server.api.registry import bind_apis
from sparklog_server.api.services import Services
from sparklog_server.cluster.controller import Controller
from sparklog_server.cluster.elections import FACTORS, Assigning
from sparklog_server.cluster.following import Follower
from sparklog_server.cluster.leadership import Leadership
from sparklog_server.cluster.membership import Membership
from sparklog_server.coordination.internal_topic import Host
from sparklog_server.dispatch.dispatcher import Dispatcher
from sparklog_server.fetch.service import FetchService
from sparklog_server.groups.coordinator import GroupCoordinator
from sparklog_server.http.endpoint import HttpEndpoint
from sparklog_server.maintenance.service import MaintenanceService
from sparklog_server.metrics import Metrics
from sparklog_server.network.server import Network
from sparklog_server.observe.observation import Parts
from sparklog_server.publish.first_batches import FirstBatches
from sparklog_server.publish.produced_batches import TopicRules
from sparklog_server.publish.publisher import ProducerIds, Publisher
from sparklog_server.root.live_root import Attention, LiveRoot, SettingsInForce
from sparklog_server.runtime.crypto_threads import CryptoThreads
from sparklog_server.runtime.lifecycle import BrokerState, Lifecycle
from sparklog_server.runtime.timing import Timer
from sparklog_server.security.access import Access
from sparklog_server.security.audit_topic import AuditTopic
from sparklog_server.security.listeners import check_listeners
from sparklog_server.security.quotas import Quotas
from sparklog_server.security.sasl import Authenticator
from sparklog_server.settings.config import ServerConfig
from sparklog_server.settings.network import AdvertisedListener
from sparklog_server.share.coordinator import ShareCoordinator
from sparklog_server.share.service import ShareService
from sparklog_server.share.writer import ShareWriter
from sparklog_server.transactions.coordinator import TransactionCoordinator
from sparklog_server.transactions.sweep import TransactionSweep

_log = logging.getLogger("sparklog_server")
FAILED_TIMEOUT_MS = 500
CONTROLLER_POLL_MS = 250


class Component(Protocol):
    """A part of the broker that is started and stopped."""

    async def start(self) -> None:
        """Start; called before clients are accepted."""

    async def stop(self) -> None:
        """Stop; called after the last request was answered."""


class Broker:
    """See the module's docstring."""

    def __init__(self, config: ServerConfig, log: SparkLog, clock: Clock) -> None:
        self.config = config
        self.clock = clock
        self.lifecycle = Lifecycle()
        self.metrics = Metrics()
        self._timer = Timer(clock)
        self.root = self._make_root(log)
        self.settings = SettingsInForce(config, self.root)
        self.attention = Attention()
        self._crypto = CryptoThreads()
        assigning = Assigning(lambda image: self.root.root_config_of(FACTORS, image))
        self.membership = Membership(
            self.root, self.lifecycle, assigning, config.broker, advertised=self._advertised
        )
        self.leadership = Leadership(config.broker.node_id, self.root)
        self.controller = Controller(
            self.root,
            self.membership,
            assigning,
            config,
            clock=clock,
            metrics=self.metrics,
            on_fatal=self.lifecycle.fail,
        )
        self.follower = self._make_follower()
        self.fetches = self._make_fetches()
        self.topic_rules = TopicRules(
            self.root, max_decompressed_bytes=config.publish.max_decompressed_message_bytes
        )
        self.publisher = self._make_publisher()
        self.groups = self._make_groups()
        self.transactions = TransactionCoordinator(
            self.root, self.publisher, config.transactions, clock=clock, metrics=self.metrics
        )
        self.access = Access(config.access, lambda: self.root.image, clock)
        self.quotas = Quotas(config.quotas, lambda: self.root.image, clock.monotonic_ms)
        self.shares = self._make_shares()
        self.share_groups = self._make_share_groups()
        self.dispatcher = self._make_dispatcher()
        self.network = self._make_network()
        self.http = HttpEndpoint(
            config,
            self._observed(),
            storage_threads=lambda: self.root.storage_threads,
            access=self.access,
            crypto=self._crypto,
        )
        self.maintenance = self._make_maintenance()
        self._apply_settings(self.settings.current)
        self.settings.on_change(self._apply_settings)
        self.components = self._in_order()
        self._started: list[Component] = []

    def _in_order(self) -> list[Component]:
        """Return the components in the order of starting."""
        return [
            self._crypto,
            self.http,
            self.membership,
            self.controller,
            self.publisher,
            self.fetches,
            self.groups,
            self.transactions,
            self.shares,
            self.share_groups,
            self._make_sweep(),
            self.maintenance,
            AuditTopic(
                self.root,
                self.access.audit,
                self.config.access,
                node_id=self.config.broker.node_id,
            ),
        ]

    def _apply_settings(self, settings: ServerConfig) -> None:
        """Apply the settings that can change while the broker runs (settings/updating.py)."""
        self.root.resize(settings.broker.num_io_threads)
        self.network.change(settings.network)
        self.maintenance.change(settings.maintenance)

    def _make_root(self, log: SparkLog) -> LiveRoot:
        return LiveRoot(
            log,
            defaults=self.config.root_defaults(),
            metrics=self.metrics,
            storage_threads=self.config.broker.num_io_threads,
            node_id=self.config.broker.node_id,
        )

    def _make_follower(self) -> Follower:
        return Follower(
            self.root,
            self.membership,
            self.lifecycle,
            self.metrics,
            self.attention,
            poll_ms=self.config.broker.metadata_poll_ms,
            idle_ms=self._idle_poll_ms,
        )

    def _make_fetches(self) -> FetchService:
        return FetchService(
            self.root,
            self.membership,
            self.leadership,
            self.config.fetch,
            timer=self._timer,
            clock=self.clock,
            metrics=self.metrics,
        )

    def _make_maintenance(self) -> MaintenanceService:
        return MaintenanceService(
            self.root,
            self.membership,
            self.config,
            is_controller=lambda: self.controller.is_controller,
            clock=self.clock,
            metrics=self.metrics,
        )

    def _make_sweep(self) -> TransactionSweep:
        return TransactionSweep(
            self.root,
            self.membership,
            self.publisher,
            self.config.transactions,
            is_controller=lambda: self.controller.is_controller,
            timer=self._timer,
            clock=self.clock,
            metrics=self.metrics,
        )

    def _make_publisher(self) -> Publisher:
        return Publisher(
            self.root,
            self.membership,
            self.config.publish,
            self.topic_rules,
            self.metrics,
            on_appended=self.fetches.on_appended,
            on_fatal=self.lifecycle.fail,
        )

    def _make_groups(self) -> GroupCoordinator:
        groups = GroupCoordinator(
            Host(
                root=self.root,
                role=self.membership,
                leadership=self.leadership,
                publisher=self.publisher,
                timer=self._timer,
                clock=self.clock,
                metrics=self.metrics,
            ),
            self.config.groups,
        )
        self.lifecycle.on_failed(groups.release)
        self.membership.on_resigned(groups.release)
        self.membership.on_resigned(self._refuse_clients)
        self.membership.on_resumed(groups.resume)
        return groups

    def _make_shares(self) -> ShareService:
        shares = ShareService(
            self.root,
            self.membership,
            self.leadership,
            self.fetches,
            ShareWriter(self.publisher, lambda: self.root.image, self.config.broker.node_id),
            self.config.share,
            timer=self._timer,
            clock=self.clock,
        )
        self.lifecycle.on_failed(shares.release)
        self.membership.on_resigned(shares.release)
        return shares

    def _make_share_groups(self) -> ShareCoordinator:
        return ShareCoordinator(
            self.root,
            self.publisher,
            self.config.share,
            self.config.groups,
            refusal_of=self.groups.describe_error,
            is_other_kind=self.groups.exists,
            count_others=self.groups.member_count,
            timer=self._timer,
            clock=self.clock,
        )

    def _end_of_connection(self, connection: int) -> None:
        self.fetches.sessions.end_of(connection)
        self.shares.end_of_connection(connection)

    def _refuse_clients(self) -> None:
        """Refuse connections if other brokers may lead this broker's partitions, and the log is not followed.

        It does not know the new leaders then. Some clients ask no other broker as long as this one answers.
        """
        if self.leadership.has_others:
            self.publisher.send_away()
            if self.membership.left_ms <= 0:
                self.network.refuse("the log cannot be followed, and other brokers may serve")

    def _make_dispatcher(self) -> Dispatcher:
        return Dispatcher(
            self.config.network,
            bind_apis(self._services()),
            self.attention,
            metrics=self.metrics,
            clock=self.clock,
            quotas=self.quotas,
        )

    def _make_network(self) -> Network:
        network = Network(
            self.config.network,
            self.dispatcher.begin,
            clock=self.clock,
            metrics=self.metrics,
            run_blocking=self.root.run,
            on_closed=self._end_of_connection,
            run_crypto=self._crypto.run,
            security=self.config.security,
            secured=self.config.secured_listeners(),
            may_connect=self.quotas.may_connect,
        )
        self.membership.on_resumed(self._accept_clients)
        return network

    def _accept_clients(self) -> None:
        """Listen again, or fail: with its heartbeats an unreachable broker would lead partitions."""
        try:
            self.network.listen()
        except OSError as error:
            self.lifecycle.fail(error)

    def _services(self) -> Services:
        return Services(
            node_id=self.config.broker.node_id,
            config=self.config,
            clock=self.clock,
            metrics=self.metrics,
            root=self.root,
            membership=self.membership,
            leadership=self.leadership,
            controller=self.controller,
            access=self.access,
            authenticator=Authenticator(
                self.config.security,
                self.config.secured_listeners(),
                lambda: self.root.image.scram,
                self._crypto.run,
                self._crypto.run_token,
                clock=self.clock,
                metrics=self.metrics,
            ),
            quotas=self.quotas,
            publisher=self.publisher,
            topic_rules=self.topic_rules,
            producer_ids=ProducerIds(self.publisher),
            first_batches=FirstBatches(self.clock.monotonic_ms),
            fetches=self.fetches,
            groups=self.groups,
            transactions=self.transactions,
            shares=self.shares,
            share_groups=self.share_groups,
            changes=Changes(self.root, self.publisher),
            topic_listing=TopicListing(),
            log_dirs=LogDirListing(lambda: self.root.image),
            searching=asyncio.Lock(),
        )

    def _observed(self) -> Parts:
        return Parts(
            lifecycle=self.lifecycle,
            root=self.root,
            membership=self.membership,
            leadership=self.leadership,
            publisher=self.publisher,
            groups=self.groups,
            clock=self.clock,
            metrics=self.metrics,
        )

    def _advertised(self) -> list[AdvertisedListener]:
        """Return the listeners, for membership: it is created before the network, and registers later."""
        return self.network.advertised()

    def _idle_poll_ms(self) -> float:
        """Return the interval of refreshes without demand; shorter for the controller."""
        settings = self.config.broker
        bound_ms = min(settings.broker_heartbeat_interval_ms, settings.broker_session_timeout_ms / 4)
        return min(CONTROLLER_POLL_MS, bound_ms) if self.controller.is_controller else bound_ms

    async def start(self) -> None:
        """Bind the ports, start the components, then listen.

        Raises:
            InvalidRequestError: OPEN_LISTENER; a listener lets everybody in, and the settings forbid it.
        """
        lifecycle = self.lifecycle
        lifecycle.change(BrokerState.STARTING)
        check_listeners(self.config)
        self.network.bind()
        lifecycle.change(BrokerState.RECOVERY)
        for component in self.components:
            await component.start()
            self._started.append(component)
        if lifecycle.failure is not None:
            raise lifecycle.failure
        self.follower.start()
        self.network.start()
        lifecycle.change(BrokerState.RUNNING)  # in the same turn of the loop: before the first client

    async def stop(self, timeout_ms: int | None = None) -> None:
        """Hand over leaderships, answer requests in progress, within the timeout, and close everything."""
        timeout_ms = self.config.broker.shutdown_timeout_ms if timeout_ms is None else timeout_ms
        lifecycle = self.lifecycle
        if lifecycle.state is BrokerState.RUNNING:
            lifecycle.change(BrokerState.PENDING_CONTROLLED_SHUTDOWN)
            began_ms = self.clock.monotonic_ms()
            await self.attention.begin()  # follow the log, to learn the new leaders
            await self.membership.hand_over(timeout_ms)
            used_ms = self.clock.monotonic_ms() - began_ms
            timeout_ms = max(timeout_ms - used_ms, min(timeout_ms, FAILED_TIMEOUT_MS))
        # A failed broker acknowledges nothing; errors that are being sent still go out.
        failed = lifecycle.has_failed
        await self.network.stop(min(timeout_ms, FAILED_TIMEOUT_MS) if failed else timeout_ms)
        if not lifecycle.has_failed:  # it may also fail while it stops
            lifecycle.change(BrokerState.SHUTTING_DOWN)
        self.follower.stop()
        for component in reversed(self._started):
            try:
                await component.stop()
            except Exception:  # noqa: BLE001 - the other components must still stop
                _log.exception("stopping %s failed", type(component).__name__)
        self._started.clear()
        self._timer.stop()
        self.root.close()
        if not lifecycle.has_failed:
            lifecycle.change(BrokerState.NOT_RUNNING)
