"""Quotas of clients: how long a client has to wait after a request.

A client is metered by the most specific entity with a quota, in Kafka's order: its user and client id, its
user with the default client id, its user, the default user with its client id, the default user and client
id, the default user, its client id, the default client id. It may use the quota of ten windows in a burst,
and then waits until the mean is legal again. The answer says so first, and then nothing is read from its
connection.

Invariants: at most MAX_METERS entities are metered by themselves; when more are active, the others share a
    meter for each quota, so that a client cannot make the broker forget its past, or hold more, by inventing
    names. Without quotas nothing is measured.
Not here: waiting (network/connection.py), the quotas themselves (metadata/model/access.py).
Concurrency: event loop only.
Sources: Kafka ClientQuotaManager, ClientRequestQuotaManager, ControllerMutationQuotaManager, Rate,
    TokenBucket; KIP-13, KIP-124, KIP-219, KIP-599, KIP-612.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Final, NamedTuple

from sparklog.metadata import CLIENT_ID, IP, USER, Image, QuotaEntity
from sparklog_server.protocol.apis import RequestContext
from sparklog_server.settings.access import QuotaSettings

PRODUCED, FETCHED, REQUESTS = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
MUTATIONS, CONNECTIONS = "controller_mutation_rate", "connection_creation_rate"
MAX_METERS: Final = 10_000
_MAX_RESOLVED: Final = 10_000
_USER_PREFIX = "User:"
_LOOKED_AT: Final = 4  # entities, each time, whether they can be forgotten
_SHARED = "", ""  # the meter of those that have none of their own
_Key = tuple[str, str, str]  # quota, user or address, client id


class Limit(NamedTuple):
    """A quota in force, and the names that share its meter."""

    value: float
    meter: tuple[str, str]


# --- buckets -----------------------------------------------------------------------------------------


class Bucket:
    """Tokens that come back with the time, up to a burst. An overdraft is paid back by waiting.

    Kafka compares the mean of some windows with the quota instead, and forgets what is older. With 50 clients
    of one user, each of which sends once more before it knows of the others, that let 1.4 of the quota pass.
    """

    __slots__ = ("_at_ms", "_burst", "_rate", "_tokens")

    def __init__(self, rate: float, burst: float, now_ms: float) -> None:
        self._rate, self._burst = rate, burst
        self._tokens = burst
        self._at_ms = now_ms

    def change(self, rate: float, burst: float) -> None:
        """Set the tokens of a second, and the most that there may be; also when they are as before."""
        self._rate, self._burst = rate, burst

    def take(self, count: float) -> None:
        """Use tokens; a negative count gives them back."""
        self._tokens = min(self._burst, self._tokens - count)

    def tokens(self, now_ms: float) -> float:
        """Return the tokens that there are."""
        come = self._rate * (now_ms - self._at_ms) / 1000
        self._tokens = min(self._burst, self._tokens + come)
        self._at_ms = now_ms
        return self._tokens

    def throttle_ms(self, now_ms: float) -> float:
        """Return how long until the overdraft is paid back."""
        return max(0.0, -self.tokens(now_ms) / self._rate * 1000)

    def limit_overdraft(self, most_ms: float) -> None:
        """Forgive what would take longer than this."""
        self._tokens = max(self._tokens, -self._rate * most_ms / 1000)

    def is_full(self, now_ms: float) -> bool:
        """True if it is as a new one."""
        return self.tokens(now_ms) >= self._burst


# --- quotas ------------------------------------------------------------------------------------------


class Quotas:
    """See the module's docstring."""

    def __init__(
        self, settings: QuotaSettings, image: Callable[[], Image], monotonic_ms: Callable[[], float]
    ) -> None:
        self._window_ms = settings.quota_window_size_seconds * 1000
        self._burst_ms = (settings.quota_window_num - 1) * self._window_ms
        self._mutations_ms = (
            settings.controller_quota_window_num * settings.controller_quota_window_size_seconds * 1000
        )
        self._image = image
        self._now_ms = monotonic_ms
        self._seen: Mapping[QuotaEntity, Mapping[str, float]] = {}
        self._keys: frozenset[str] = frozenset()  # quotas that any entity has
        self._resolved: dict[_Key, Limit | None] = {}
        self._buckets: OrderedDict[_Key, Bucket] = OrderedDict()  # the least recently used first

    @property
    def meter_count(self) -> int:
        """Return the number of entities that are metered."""
        return len(self._buckets)

    def has(self, quota: str) -> bool:
        """True if any client has such a quota: else there is nothing to measure."""
        quotas = self._image().quotas
        if quotas is not self._seen:
            self._seen = quotas
            self._keys = frozenset(key for own in quotas.values() for key in own)
            self._resolved.clear()
        return quota in self._keys

    def limit(self, quota: str, context: RequestContext) -> Limit | None:
        """Return the quota of a client; None: it has none."""
        if not self.has(quota):
            return None
        key = quota, context.principal.removeprefix(_USER_PREFIX), context.client_id
        if key not in self._resolved:
            if len(self._resolved) >= _MAX_RESOLVED:
                self._resolved.clear()
            self._resolved[key] = self._resolve(*key)
        return self._resolved[key]

    def count(self, quota: str, context: RequestContext, value: float) -> float:
        """Count a value of a client; return how long it has to wait, in ms."""
        limit = self.limit(quota, context)
        if limit is None:
            return 0.0
        bucket = self._bucket(quota, limit)
        bucket.take(value)
        if quota != REQUESTS:
            return bucket.throttle_ms(self._now_ms())
        bucket.limit_overdraft(self._burst_ms)
        return min(bucket.throttle_ms(self._now_ms()), self._window_ms)

    def take_back(self, quota: str, context: RequestContext, value: float) -> None:
        """Count a value back: it is not sent."""
        limit = self.limit(quota, context)
        if limit is not None:
            self._bucket(quota, limit).take(-value)

    def most_in_windows(self, quota: str, context: RequestContext) -> int | None:
        """Return the most that a client may get in one answer; None: it has no quota."""
        limit = self.limit(quota, context)
        return None if limit is None else max(1, int(limit.value * self._burst_ms / 1000))

    def mutations(self, context: RequestContext) -> "Mutations":
        """Return the client's tokens for partitions that it creates and deletes."""
        limit = self.limit(MUTATIONS, context)
        bucket = None if limit is None else self._bucket(MUTATIONS, limit)
        return Mutations(bucket, self._now_ms)

    def may_connect(self, host: str) -> bool:
        """Count a connection of an address; False if it has made too many in the last windows."""
        if not self.has(CONNECTIONS):
            return True
        for entity in ((IP, host),), ((IP, None),):
            value = self._seen.get(entity, {}).get(CONNECTIONS)
            if value is not None:
                break
        else:
            return True
        bucket = self._bucket(CONNECTIONS, Limit(value, (host, "")))
        if bucket.tokens(self._now_ms()) < 1:
            return False
        bucket.take(1)
        return True

    def _resolve(self, quota: str, user: str, client_id: str) -> Limit | None:
        """Return the quota of the first entity, in Kafka's order, that has this one."""
        default = None
        candidates: tuple[tuple[QuotaEntity, tuple[str, str]], ...] = (
            (((CLIENT_ID, client_id), (USER, user)), (user, client_id)),
            (((CLIENT_ID, default), (USER, user)), (user, client_id)),
            (((USER, user),), (user, "")),
            (((CLIENT_ID, client_id), (USER, default)), (user, client_id)),
            (((CLIENT_ID, default), (USER, default)), (user, client_id)),
            (((USER, default),), (user, "")),
            (((CLIENT_ID, client_id),), ("", client_id)),
            (((CLIENT_ID, default),), ("", client_id)),
        )
        for entity, meter in candidates:
            value = self._seen.get(entity, {}).get(quota)
            if value is not None:
                return Limit(value, meter)
        return None

    def _bucket(self, quota: str, limit: Limit) -> Bucket:
        """Return the bucket of an entity, or the shared one."""
        known, now_ms, key = self._buckets, self._now_ms(), (quota, *limit.meter)
        for oldest in list(islice(known, _LOOKED_AT)):
            if known[oldest].is_full(now_ms):
                del known[oldest]
            else:
                known.move_to_end(oldest)
        if key not in known and len(known) >= MAX_METERS:
            key = (quota, *_SHARED)
        burst = limit.value * (self._mutations_ms if quota == MUTATIONS else self._burst_ms) / 1000
        bucket = known.get(key)
        if bucket is None:
            bucket = known[key] = Bucket(limit.value, burst, now_ms)
        else:
            bucket.tokens(now_ms)
            bucket.change(limit.value, burst)
            known.move_to_end(key)
        return bucket


class Mutations:
    """The tokens of one request; `throttle_ms`: how long its client has to wait."""

    __slots__ = ("_bucket", "_now_ms", "throttle_ms")

    def __init__(self, bucket: Bucket | None, now_ms: Callable[[], float]) -> None:
        self._bucket = bucket
        self._now_ms = now_ms
        self.throttle_ms = 0.0

    def try_take(self, count: int, *, is_strict: bool) -> bool:
        """Use tokens for so many partitions; False if there are none: the change must not be made.

        Args:
            is_strict: the client knows THROTTLING_QUOTA_EXCEEDED; else the change is made, and it waits.
        """
        bucket = self._bucket
        if bucket is None:
            return True
        waiting_ms = bucket.throttle_ms(self._now_ms())
        is_allowed = not is_strict or waiting_ms <= 0
        if is_allowed:
            bucket.take(count)
        if not is_strict:
            waiting_ms = bucket.throttle_ms(self._now_ms())
        self.throttle_ms = max(self.throttle_ms, waiting_ms)
        return is_allowed
