"""Joining a root: what has to be found out about the node id before.

A node id may still be registered, by a process that was killed, or by one that runs. Where a lock proves that
the old one is dead (node_lock.py), its registration is ended in the commit that makes ours. Elsewhere its
object is watched, as a controller would: until it is fenced, or counts as dead, which takes a session. If it
moves instead, a start waits for its end for a while, and then the node id is refused. It has to move twice:
the last write of a dead process may land late, once.

An object that cannot be read, damaged or not, says nothing of who is dead. So it is replaced once by one
that says nothing either (heartbeats.py), and watched on: who lives writes over it. If it still cannot be read
then, the start fails, as where the storage is away.

1. broker 1 is killed, and started again at once, on another machine;
2. nobody has fenced the registration yet; a join would be refused, and to end it unasked would take a running
   broker's place, if somebody only mistook the number;
3. so it looks on, and joins after as many silent looks as a controller needs, or when that was quicker.

Invariants: a registration that is not fenced is ended by proof, or after as many silent looks as mean death.
Not here: joining again after a fence (membership.py), the commit (registration.py), trying again while the
    node id is taken (registering.py).
Concurrency: event loop; storage work in storage threads. `is_stopping` ends the waiting.
After a crash: the next start begins anew.
Sources: docs/adr/0026; tests/models/liveness.py.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from sparklog.errors import FatalStorageError, SparklogError
from sparklog.metadata import NO_EPOCH, BrokerListener, Image, RegisteredBroker
from sparklog_server.cluster.assigning import Assigning
from sparklog_server.cluster.duties import plan_entering
from sparklog_server.cluster.heartbeats import NO_BEAT, Beat, read_heartbeats, say_nothing
from sparklog_server.cluster.node_lock import NodeLock
from sparklog_server.cluster.observer import Observer, looks_until_dead
from sparklog_server.cluster.registration import Registration
from sparklog_server.root.live_root import LiveRoot
from sparklog_server.settings.broker import BrokerSettings

_log = logging.getLogger("sparklog_server")
_MOVES_OF_LIFE = 2


async def join(
    root: LiveRoot,
    settings: BrokerSettings,
    lock: NodeLock,
    listeners: Sequence[BrokerListener],
    *,
    incarnation_id: str,
    assigning: Assigning,
    until_ms: int,
    is_stopping: Callable[[], bool],
) -> Registration:
    """Join when the node id is free. `incarnation_id`: this process's, whatever it has tried before.

    Args:
        until_ms: by the monotonic clock; so long a process that has the node id, and lives, is waited for.

    Raises:
        FencedError: DUPLICATE_BROKER.
    """
    image = await root.run(_refreshed, root)
    known = _standing(image, settings.node_id)
    replaces = NO_EPOCH
    if known is not None and known.incarnation_id != incarnation_id:
        if lock.proves_death_of(known):
            replaces = known.broker_epoch
            _log.warning("broker %d was not stopped: its registration is ended", settings.node_id)
        else:
            replaces = await _watch(root, settings, known, until_ms, is_stopping)
    joined = await root.run(
        lambda: Registration.join(
            root.metadata,
            settings.node_id,
            listeners,
            incarnation_id=incarnation_id,
            rack=settings.broker_rack,
            replaces=replaces,
            entering=lambda before, after, joined: plan_entering(before, after, joined, assigning),
            completing=assigning.assignments,
        )
    )
    lock.note(joined.incarnation_id)
    return joined


async def _watch(
    root: LiveRoot,
    settings: BrokerSettings,
    known: RegisteredBroker,
    until_ms: int,
    is_stopping: Callable[[], bool],
) -> int:
    """Wait for an old registration's end; returns its epoch if it is for us to end it."""
    node_id, interval_ms = known.node_id, settings.broker_heartbeat_interval_ms
    looks = looks_until_dead(settings.broker_session_timeout_ms, interval_ms)
    most_ms = max((looks + 2) * interval_ms, until_ms - root.log.clock.monotonic_ms())
    text = "waiting for broker %d of epoch %d to end, or to be found dead, at most %d s"
    _log.warning(text, node_id, known.broker_epoch, -(-most_ms // 1000))
    observer = Observer(interval_ms=interval_ms, looks=looks)
    newest, moves = Beat(known.broker_epoch, 0), -1  # older ones are not of this registration
    unread = 0
    while not is_stopping():
        standing = _standing(await root.run(_refreshed, root), node_id)
        if standing is None or standing.broker_epoch != known.broker_epoch:
            return NO_EPOCH  # it was fenced, by the controller or itself; or somebody else joined first
        try:
            found = await root.run(read_heartbeats, root.store, [node_id])
        except FatalStorageError:
            raise
        except (SparklogError, OSError) as error:
            unread += 1
            if unread == 1:  # never again: who lives must get a word in
                await _replace(root, known, error)
                observer = Observer(interval_ms=interval_ms, looks=looks)  # what it did was nobody's silence
            elif unread > looks and root.log.clock.monotonic_ms() >= until_ms:
                raise
            await asyncio.sleep(interval_ms / 1000)
            continue
        beat = found.get(node_id, NO_BEAT)
        if beat > newest:
            newest, moves = beat, moves + 1
        now_ms = root.log.clock.monotonic_ms()
        if moves >= _MOVES_OF_LIFE and now_ms >= until_ms:
            break
        if observer.look({node_id: known}, found, now_ms=now_ms):
            return known.broker_epoch
        await asyncio.sleep(interval_ms / 1000)
    return NO_EPOCH  # the join is refused, by what the registration says of itself


def _refreshed(root: LiveRoot) -> Image:
    return root.log.refresh(force=True)


async def _replace(root: LiveRoot, known: RegisteredBroker, why: Exception) -> None:
    text = "the sign of life of broker %d cannot be read, and is replaced by one that says nothing: %s"
    _log.warning(text, known.node_id, why)
    try:
        await root.run(say_nothing, root.store, known.node_id, known.broker_epoch)
    except FatalStorageError:
        raise
    except (SparklogError, OSError) as error:
        _log.warning("the sign of life of broker %d could not be replaced: %s", known.node_id, error)


def _standing(image: Image, node_id: int) -> RegisteredBroker | None:
    """The registration of a node id that is not fenced."""
    known = image.brokers.get(node_id)
    return None if known is None or known.is_fenced else known
