"""Several brokers over one root: what keeps one that cannot go on from being in the way of all."""

from scripts.mutations.mutant import Mutant

CLUSTER = "sparklog_server/cluster"
DUTIES, OF_DUTIES = f"{CLUSTER}/elections.py", "tests/server/cluster/test_duties.py"
REASSIGNMENT = f"{CLUSTER}/elections.py"
OF_REASSIGNMENT = "tests/server/cluster/test_reassignment.py"
OF_UNREGISTERING = "tests/server/cluster/test_unregistering.py"
OF_JOINING_AGAIN = "tests/server/cluster/test_joining_again.py"
OBSERVER = f"{CLUSTER}/liveness.py"
OF_LOOKING = "tests/server/cluster/test_looking.py"
OF_LOOKING_THREADS = "tests/server/cluster/test_looking_threads.py"
OF_OBSERVER = "tests/server/cluster/test_observer.py"
OF_TAKEN = "tests/server/cluster/test_taken_node_ids.py"
OF_LISTENER = "tests/server/network/test_listener.py"
LISTENER = "sparklog_server/network/server.py"
OF_UNREADABLE = "tests/server/cluster/test_unreadable_signs.py"
OF_FOLLOWER = "tests/server/cluster/test_follower_failures.py"
OF_STATES = "tests/server/cluster/test_state_log.py"

MUTANTS = (
    Mutant(
        "brokers: a reassignment without a target ends with the replicas of before",
        REASSIGNMENT,
        "    return _ended(partition, target) if target else unless_void(partition)\n",
        "    return _ended(partition, target)\n",
        OF_REASSIGNMENT,
    ),
    Mutant(
        "brokers: a reassignment whose target is forgotten is called off",
        f"{CLUSTER}/elections.py",
        "    return unless_void(after)\n",
        "    return after\n",
        OF_UNREGISTERING,
    ),
    Mutant(
        "controller: a part of what is due that is refused holds up no other",
        DUTIES,
        "            except (SparklogError, ActionRefusedError) as error:\n",
        "            except ActionRefusedError as error:\n",
        OF_DUTIES,
    ),
    Mutant(
        "controller: a part of what is due that is refused leaves nothing in the plan",
        DUTIES,
        "            after = self.image.commit + 1\n"
        '            self.image = apply_actions(self.image, actions, commit=after, commit_uuid="planned")\n'
        "            self.actions += actions\n",
        "            self.actions += actions\n"
        "            after = self.image.commit + 1\n"
        '            self.image = apply_actions(self.image, actions, commit=after, commit_uuid="planned")\n',
        OF_DUTIES,
    ),
    Mutant(
        "controller: what a registration led is led with the join that ends it",
        DUTIES,
        "    yield lambda image, epoch: plan_takeover(image, controller_epoch=epoch)\n\n\n",
        "\n\n",
        OF_DUTIES,
    ),
    Mutant(
        "controller: what was refused is tried again",
        f"{CLUSTER}/controller.py",
        "        self._review_due = asyncio.get_running_loop().time() + _AGAIN_SECONDS\n",
        "",
        "tests/server/cluster/test_controller_failures.py",
    ),
    Mutant(
        "brokers: who is fenced while it joins again joins once more",
        f"{CLUSTER}/membership.py",
        "        self._root.show()\n        self._join_again_if_lost()\n        self.review()\n",
        "        self._root.show()\n        self.review()\n",
        OF_JOINING_AGAIN,
    ),
    Mutant(
        "brokers: who is fenced while it joins for the first time joins again",
        f"{CLUSTER}/membership.py",
        "        self._join_again_if_lost()  # what was shown before the registration was known\n",
        "",
        OF_JOINING_AGAIN,
    ),
    Mutant(
        "states: a new replica whose broker was away is new again",
        f"{CLUSTER}/state_log.py",
        "    Replica.OFFLINE: frozenset({Replica.NEW, Replica.ONLINE, ",
        "    Replica.OFFLINE: frozenset({Replica.ONLINE, ",
        OF_STATES,
    ),
    Mutant(
        "brokers: a follower that has ended by a fault stops its broker",
        f"{CLUSTER}/following.py",
        "exc_info=error)\n            self._lifecycle.fail(error)\n",
        "exc_info=error)\n",
        OF_FOLLOWER,
    ),
    Mutant(
        "controller: who asks without a pause puts off no look",
        f"{CLUSTER}/controller.py",
        "                if loop.time() < due:  #",
        "                if due:  #",
        "tests/server/cluster/test_controller_queue.py",
    ),
    Mutant(
        "controller: one that has ended by a fault stops its broker",
        f"{CLUSTER}/controller.py",
        "exc_info=error)\n            self._on_fatal(error)\n",
        "exc_info=error)\n",
        "tests/server/cluster/test_controller_failures.py",
    ),
    Mutant(
        "brokers: nobody watches for the death of a registration of his own",
        f"{CLUSTER}/membership.py",
        "    if known is not None and known.incarnation_id != incarnation_id:\n",
        "    if known is not None:\n",
        OF_JOINING_AGAIN,
    ),
    Mutant(
        "brokers: who waits for an older registration's end counts its own signs of life only",
        f"{CLUSTER}/membership.py",
        "    newest, moves = Beat(known.broker_epoch, 0), -1",
        "    newest, moves = NO_BEAT, -1",
        OF_JOINING_AGAIN,
    ),
    Mutant(
        "brokers: who is fenced gives no signs of life until it has joined again",
        f"{CLUSTER}/membership.py",
        "        self.heart.pause()\n",
        "",
        OF_JOINING_AGAIN,
    ),
    Mutant(
        "brokers: who stops ends what a try to join has become",
        f"{CLUSTER}/membership.py",
        "            action = plan_fence_broker(image, known.node_id, known.broker_epoch)\n",
        "            action = plan_fence_broker(image, known.node_id, 0)\n",
        OF_JOINING_AGAIN,
    ),
    Mutant(
        "brokers: who stops ends no registration but its own",
        f"{CLUSTER}/membership.py",
        "            if known is None or known.incarnation_id != self._incarnation_id:\n",
        "            if known is None:\n",
        OF_JOINING_AGAIN,
    ),
    Mutant(
        "looks: silence that is shared is no evidence",
        f"{CLUSTER}/liveness.py",
        " or beats == self._beats_counted:\n",
        ":\n",
        OF_LOOKING,
    ),
    Mutant(
        "looks: one that was overtaken says nothing",
        f"{CLUSTER}/liveness.py",
        " or number < self._counted or beats",
        " or beats",
        OF_LOOKING,
    ),
    Mutant(
        "looks: so many requests for one object hang at most",
        f"{CLUSTER}/liveness.py",
        "        if self._under_way[node_id] >= self._most:\n            return None\n",
        "",
        OF_LOOKING,
    ),
    Mutant(
        "looks: one at a time would be held up by one that hangs",
        f"{CLUSTER}/liveness.py",
        "_MOST_UNDER_WAY: Final = 4 ",
        "_MOST_UNDER_WAY: Final = 1 ",
        OF_LOOKING,
    ),
    Mutant(
        "looks: however many objects hang the others are looked at",
        f"{CLUSTER}/liveness.py",
        "        if self._under_way[node_id] >= self._most:\n",
        "        if self._under_way[node_id] >= self._most or self._under_way.total() >= 16:\n",
        OF_LOOKING_THREADS,
    ),
    Mutant(
        "looks: a moment without threads is no fault of ours",
        f"{CLUSTER}/liveness.py",
        "            except BlockingIOError as error:\n                problems.append(error)\n",
        "            except ZeroDivisionError as error:\n                problems.append(error)\n",
        OF_LOOKING_THREADS,
    ),
    Mutant(
        "looks: what gets no thread takes no place",
        f"{CLUSTER}/liveness.py",
        "        loop = asyncio.get_running_loop()\n        future:",
        "        self._under_way[node_id] += 1\n        loop = asyncio.get_running_loop()\n        future:",
        OF_LOOKING_THREADS,
    ),
    Mutant(
        "looks: a replacing without a thread is tried again",
        f"{CLUSTER}/liveness.py",
        "            self._failures[registration] -= 1  # the next failure tries it again\n",
        "            pass\n",
        OF_LOOKING_THREADS,
    ),
    Mutant(
        "looks: a replacing without a thread stops no broker",
        f"{CLUSTER}/liveness.py",
        "        with contextlib.suppress(BlockingIOError):  #",
        "        with contextlib.suppress(ZeroDivisionError):  #",
        OF_LOOKING_THREADS,
    ),
    Mutant(
        "looks: one replacing hangs at most",
        f"{CLUSTER}/liveness.py",
        "_MOST_REPLACING: Final = 1\n",
        "_MOST_REPLACING: Final = 2\n",
        OF_LOOKING_THREADS,
    ),
    Mutant(
        "looks: our own sign of life arrives before anybody is asked for",
        f"{CLUSTER}/liveness.py",
        "        if not found or number <",
        "        beats = self._beats()\n        if not found or number <",
        OF_LOOKING_THREADS,
    ),
    Mutant(
        "looks: one that was begun before an answer came is no later one",
        OBSERVER,
        "        return self._looked_ms is None or began_ms >= self._looked_ms\n",
        "        return True\n",
        f"{OF_LOOKING_THREADS} {OF_OBSERVER}",
    ),
    Mutant(
        "looks: the times of one are those of its answers",
        f"{CLUSTER}/liveness.py",
        "            answered_ms={node_id: said.answered_ms for node_id, said in found.items()},\n",
        "",
        OF_LOOKING_THREADS,
    ),
    Mutant(
        "looks: a fault of ours stops the broker",
        f"{CLUSTER}/liveness.py",
        "must not live on\n            self._on_fatal(error)\n",
        "must not live on\n",
        OF_LOOKING,
    ),
    Mutant(
        "looks: an object that cannot be read hides nobody else's death",
        f"{CLUSTER}/liveness.py",
        "        if problems and not found:\n",
        "        if problems:\n",
        OF_LOOKING,
    ),
    Mutant(
        "looks: an object that hangs keeps no other broker's waiting",
        f"{CLUSTER}/liveness.py",
        "timeout=max(first, self._interval_seconds - first)",
        "timeout=None",
        OF_LOOKING,
    ),
    Mutant(
        "looks: a storage that is slow for all says who is dead",
        f"{CLUSTER}/liveness.py",
        "timeout=max(first, self._interval_seconds - first)",
        "timeout=max(0.0, self._interval_seconds - first)",
        OF_LOOKING,
    ),
    Mutant(
        "looks: of whom nothing could be read nothing is known",
        OBSERVER,
        "            if node_id in unread:\n                continue\n",
        "",
        OF_LOOKING,
    ),
    Mutant(
        "looks: an object that stays unreadable is replaced, once",
        f"{CLUSTER}/liveness.py",
        "        if self._failures[registration] != _FAILURES:\n",
        "        if self._failures[registration] < 2:\n",
        OF_LOOKING,
    ),
    Mutant(
        "joining: an unreadable sign of life is replaced, once",
        f"{CLUSTER}/membership.py",
        "            if unread == 1:",
        "            if unread:",
        OF_UNREADABLE,
    ),
    Mutant(
        "joining: who cannot be read is not taken for dead",
        f"{CLUSTER}/membership.py",
        "            await asyncio.sleep(interval_ms / 1000)\n            continue\n",
        "            found = {}\n",
        OF_UNREADABLE,
    ),
    Mutant(
        "listener: clients are refused until it can answer",
        LISTENER,
        "            _bind(sock, (host, self.address.port))\n",
        "            _bind(sock, (host, self.address.port))\n            sock.listen(_BACKLOG)\n",
        f"{OF_TAKEN}::test_clients_of_one_that_waits_are_refused_at_once",
    ),
    Mutant(
        "listener: a port is for one alone, before it listens as well",
        LISTENER,
        "        sock.bind(address)\n    except",
        '        raise OSError(errno.EADDRINUSE, "")\n    except',
        OF_LISTENER,
    ),
    Mutant(
        "listener: connections that are left keep no next one from the port",
        LISTENER,
        "            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n",
        "",
        OF_LISTENER,
    ),
    Mutant(
        "heartbeats: what replaces an unreadable one is no sign of life",
        f"{CLUSTER}/liveness.py",
        "write(Beat(broker_epoch, 0))",
        "write(Beat(broker_epoch, 1 << 40))",
        OF_LOOKING,
    ),
)
