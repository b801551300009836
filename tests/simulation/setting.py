"""What one history is made of, all of it thrown by its seed."""

import random
from dataclasses import dataclass, field

from sparklog.log.setting import LONG_MAX
from sparklog.metadata import MetadataSettings
from sparklog.storage import Store
from tests.history.events import Event
from tests.simulation.compacted import Rules, Witness
from tests.simulation.directory_store import DirectoryStore, Disk
from tests.simulation.keyed import KEYED, text_of
from tests.simulation.remote_store import RemoteStore, Server
from tests.simulation.world import SimProcess, World

TOPICS = ("a", "b")
DIRECTORY, OBJECTS = "directory", "remote"
BROKERS_ON_DIRECTORY, BROKERS_ON_OBJECTS = "directory-brokers", "remote-brokers"
TRANSACTIONS_ON_DIRECTORY, TRANSACTIONS_ON_OBJECTS = "directory-transactions", "remote-transactions"
GROUPS_ON_DIRECTORY, GROUPS_ON_OBJECTS = "directory-groups", "remote-groups"
KINDS = (
    DIRECTORY,
    OBJECTS,
    BROKERS_ON_DIRECTORY,
    BROKERS_ON_OBJECTS,
    TRANSACTIONS_ON_DIRECTORY,
    TRANSACTIONS_ON_OBJECTS,
    GROUPS_ON_DIRECTORY,
    GROUPS_ON_OBJECTS,
)
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
SWEEP_AFTER_MS = 24 * HOUR_MS  # longer than all pauses of a process together, and than a segment is open


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """Of a history that has a compacted topic: its settings, and how it is written and compacted."""

    rules: Rules
    segment_bytes: int
    compression_type: str
    keys: int
    keyless: float  # records; above 0 the topic is not compacted at first, and not always
    tombstones: float
    small_maps: bool  # rounds end before what is there
    joined_bytes: int

    @property
    def configs(self) -> dict[str, str]:
        """Of the topic, as it is created."""
        return {
            "cleanup.policy": "delete" if self.keyless else "compact",
            "delete.retention.ms": str(self.rules.delete_retention_ms),
            "min.compaction.lag.ms": str(self.rules.min_compaction_lag_ms),
            "segment.bytes": str(self.segment_bytes),
            "compression.type": self.compression_type,
            "message.timestamp.after.max.ms": str(
                LONG_MAX
            ),  # clocks that are wrong by hours are no news here
        }


@dataclass
class Setting:
    """One history's store, sizes and habits."""

    world: World
    disk: Disk | None
    server: Server | None
    dice: random.Random
    target: int
    writers: int
    readers: int
    producers: int  # idempotent ones
    producers_remembered: int
    producers_of_now: bool  # their records have the time at which they were made; else all the same
    forgets: bool  # silent producers, at any time
    request_window: int
    publishers_remembered: int
    partitions: int
    think_ms: tuple[float, ...]  # between two operations; the first is the shortest
    transactional: float
    expires: bool
    refresh_interval_ms: int
    settings: MetadataSettings
    sweep_after_ms: int
    merges: bool
    vacuums: bool  # data files go by commit numbers; else by age
    compaction: Compaction | None
    witness: Witness
    brokers: int = 0  # that have joined; else nobody leads anything
    clients: int = 0  # of theirs
    members: int = 0  # of a group, whose coordinators are those brokers
    transactors: tuple[bool, ...] = ()  # processes with transactions: do they speak the second protocol?
    mixes_protocols: bool = False  # with one transactional id
    transaction_timeout_ms: int = 60_000
    unused_since_ms: dict[str, int] = field(default_factory=dict)  # segments, when a sweep saw it first
    operations: int = 0
    is_over: bool = False
    idle_until_us: int = 0  # nobody begins anything until then
    has_damage: bool = False  # a snapshot's
    events: list[Event] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def topics(self) -> tuple[str, ...]:
        """All of them; the compacted one last."""
        return TOPICS if self.compaction is None else (*TOPICS, KEYED)

    def throw_topic(self) -> str:
        """To be written to, or read: mostly the compacted one, which needs several records of a key."""
        if self.compaction is not None and self.dice.random() < 0.6:
            return KEYED
        return self.dice.choice(self.topics)

    def new_text(self, topic: str, sender: str, number: int, *, may_lack_key: bool = False) -> str:
        """Of a record that was never sent before."""
        if topic != KEYED:
            return f"{topic}/{sender}/{number}"
        assert self.compaction is not None
        has_key = not may_lack_key or self.dice.random() >= self.compaction.keyless
        key = f"k{self.dice.randrange(self.compaction.keys)}" if has_key else ""
        is_tombstone = bool(key) and self.dice.random() < self.compaction.tombstones
        return text_of(sender, number, key, is_tombstone=is_tombstone)

    @property
    def is_directory(self) -> bool:
        return self.disk is not None

    @property
    def lags(self) -> bool:
        """May a reader be shown something old?"""
        return self.refresh_interval_ms > 0

    def store(self, process: SimProcess) -> Store:
        """The process's own way to the files that all share."""
        if self.disk is not None:
            return DirectoryStore(self.disk, process)
        assert self.server is not None
        return RemoteStore(self.server, process, refresh_interval_ms=self.refresh_interval_ms)


def throw(world: World, kind: str, *, target: int | None) -> Setting:
    """The setting that a seed means, for a kind of history: KINDS."""
    dice = world.dice
    expires = dice.random() < 0.5
    is_directory = kind.startswith(DIRECTORY)
    merges = world.seed % 2 == 0
    compaction = _compaction(world.seed) if world.seed // 4 % 2 else None
    setting = Setting(
        world=world,
        disk=Disk(world) if is_directory else None,
        server=None if is_directory else Server(world, checks_dates=dice.random() < 0.7),
        dice=dice,
        target=target or dice.choice((5, 10, 10, 20, 40, 80)),
        writers=dice.choice((1, 2, 2, 3, 4, 6)),
        readers=dice.choice((1, 2)),
        # What retention has removed says nothing of producers any more.
        producers=0 if expires else dice.choice((0, 0, 2, 5)),
        producers_remembered=dice.choice((1, 3, 3, 4096)),
        producers_of_now=world.seed % 4 < 2,
        forgets=world.seed % 3 == 1,
        request_window=dice.choice((2, 4, 8, 30, 4096)),
        publishers_remembered=dice.choice((2, 65_536, 65_536)),
        partitions=dice.choice((1, 2, 3)),
        think_ms=dice.choice(
            ((0, 1), (0, 1, 5), (1, 50), (0, 1, 100), (0, 5, HOUR_MS / 2), (1, 5 * HOUR_MS))
        ),
        transactional=dice.choice((0.0, 0.3, 0.8)),
        expires=expires,
        sweep_after_ms=SWEEP_AFTER_MS,
        merges=merges,
        vacuums=world.seed % 3 == 0,
        compaction=compaction,
        witness=Witness(Rules(0, 0) if compaction is None else compaction.rules),
        refresh_interval_ms=0 if is_directory else dice.choice((0, 0, 100)),
        settings=MetadataSettings(
            snapshot_bytes=4096 * dice.choice((2, 3, 7, 1000)),
            clean_grace_ms=dice.choice((-1 << 40, 0, 1000)),
            clean_interval_ms=dice.choice((0, 0, 1000)),
            snapshots_kept=dice.choice((1, 2)),
            publish_timeout_ms=dice.choice((5_000, 60_000)),
        ),
    )
    if setting_of := _KINDS.get(kind.partition("-")[2]):
        setting_of(setting, dice)
        setting.target = target or setting.target
    return setting


def _with_brokers(setting: Setting, dice: random.Random) -> None:
    setting.brokers, setting.clients = dice.choice((2, 3)), dice.choice((1, 2, 3))
    # What their clients do not know of: records that expire, producers that are forgotten.
    setting.expires, setting.forgets, setting.producers = False, False, 0
    setting.producers_remembered = 4096
    setting.writers, setting.readers = 1, 1
    setting.target *= 4
    setting.think_ms = dice.choice(_BUSY)


def _with_groups(setting: Setting, dice: random.Random) -> None:
    _with_brokers(setting, dice)
    setting.clients = dice.choice((1, 2))
    setting.writers = 0  # what is made of records is in another topic, where nobody else writes
    setting.compaction, setting.witness = None, Witness(Rules(0, 0))
    setting.members = dice.choice((1, 1, 2, 3))
    setting.partitions = dice.choice((1, 2, 3, 3))  # a member may go on with another one than it has given up
    setting.target *= 2
    shortest_ms = 2_000 if setting.is_directory else 10_000
    setting.transaction_timeout_ms = dice.choice((shortest_ms, 20_000, 60_000))


def _with_transactions(setting: Setting, dice: random.Random) -> None:
    # Producers that are forgotten, and records that expire, are in the other histories.
    setting.expires, setting.forgets, setting.producers_remembered = False, False, 4096
    setting.writers, setting.producers = dice.choice((1, 2)), 0  # those have ids that nobody gave them
    setting.compaction, setting.witness = None, Witness(Rules(0, 0))
    setting.transactors = tuple(dice.random() < 0.5 for _ in range(dice.choice((2, 2, 3, 4))))
    setting.mixes_protocols = setting.world.seed % 2 == 1
    setting.transaction_timeout_ms = dice.choice((20, 500, 60_000, 10 * HOUR_MS))
    setting.target *= 4
    setting.think_ms = dice.choice(_BUSY)


_BUSY = ((0, 1), (0, 1, 5), (1, 50), (0, 1, 100), (5, 1000))
_KINDS = {"brokers": _with_brokers, "groups": _with_groups, "transactions": _with_transactions}


def _compaction(seed: int) -> Compaction:
    """By dice of its own: whether there is a compacted topic does not change what else a seed means."""
    dice = random.Random(f"compaction {seed}")
    return Compaction(
        rules=Rules(
            delete_retention_ms=dice.choice((0, 1_000, HOUR_MS, 24 * HOUR_MS)),
            min_compaction_lag_ms=dice.choice((0, 0, 0, 1_000, HOUR_MS)),
        ),
        segment_bytes=dice.choice((100, 500, 1 << 30)),
        compression_type=dice.choice(("producer", "lz4")),
        keys=dice.choice((1, 3, 6)),
        keyless=dice.choice((0.0, 0.0, 0.0, 0.2)),
        tombstones=dice.choice((0.1, 0.3)),
        small_maps=dice.random() < 0.5,
        joined_bytes=dice.choice((100, 64 << 10)),
    )
