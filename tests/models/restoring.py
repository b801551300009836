"""Restoring a root from a backup: the root forgets what came since, and whoever lives through it does not.

Producers with ids, processes with a transactional id, and a writer that has staged a segment go on after all
that opens the root was stopped, a backup was put in its place, and `sparklog root restore` has run. The same
backup may be put back twice. Promises:
    lost         who is told that a batch is in the log has it there, as far as it was told so since the last
                 restore (what was acknowledged before it is gone, and its owner knows)
    zombie       of the processes of a transactional id only the one that was initialised last is taken for
                 its owner, in whichever life of the root that was
    missing      no commit refers to a segment that the backup did not have
    repeated     no leader epoch comes again with another leader, or is below one that a client has seen

Time is the number of restores so far: what the command goes by is a clock that does not go back by as much
as one restore takes to the next (restoring.py).
Bounds: batches of a producer, initialisations, restores. Sequences wrap at four, so that half a turn is two.
Left out: a producer that the partition has forgotten for its silence (adr/0025); who was not stopped, and is
refused by the commit that it goes on from, or by the root's incarnation (tests/metadata/test_restoring.py).
"""

from dataclasses import dataclass
from typing import NamedTuple

from tests.models.explorer import Model, Next, Violation, replaced, step, world

SEQUENCES = 4
LIFE = 100  # of ids, births and epochs: none uses as many
Batch = tuple[int, int, int]  # producer id, sequence, who has sent it


class Process(NamedTuple):
    """Fields:
    at: "none": has no id yet; "on"; "staged"; "done".
    number: producer id; of the writer the birth of what it has staged.
    epoch: of a process with the transactional id.
    sent: batches of a producer; of a process with the transactional id the initialisation that it is.
    """

    at: str
    number: int = -1
    epoch: int = -1
    sent: int = 0


class Root(NamedTuple):
    """What a backup has."""

    log: tuple[Batch, ...] = ()
    known: tuple[tuple[int, int], ...] = ()  # producer id, last sequence
    next_id: int = 0
    owner: tuple[int, int] = (-1, -1)  # producer id and epoch of the transactional id
    commit: int = 0
    ahead: int = 0  # births before commits
    horizon: int = -1
    files: frozenset[int] = frozenset()  # by their births
    leader_epoch: int = 0


class State(NamedTuple):
    processes: tuple[Process, ...]
    root: Root = Root()
    backup: Root | None = None
    initialised: int = 0  # processes of the transactional id, ever
    seen_epoch: int = 0  # the highest leader epoch that a client has seen
    restores: int = 0  # so far


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The safeguards of the command, as they should be."""

    skips: bool = True  # producer ids that may have been handed out since the backup
    by_time: bool = True  # and not by so many: the same backup may be restored again
    new_owner: bool = True  # transactional ids get producer ids that nobody ever had, and not the next epoch
    forgets: bool = True  # the sequences that partitions know
    moves_horizon: bool = True
    births_ahead: bool = True  # so that the horizon is above all births of the lost commits
    raises_leaders: bool = True


class Restoring(Model):
    """See the module's docstring."""

    def __init__(
        self,
        rules: Rules,
        *,
        producers: int = 0,
        owners: int = 0,
        writers: int = 0,
        batches: int = 2,
        restores: int = 1,
        elections: int = 0,
    ) -> None:
        super().__init__()
        self.rules, self.batches, self.restores, self.elections = rules, batches, restores, elections
        self.kinds = ("producer",) * producers + ("process",) * owners + ("writer",) * writers
        self.process_names = tuple(f"{kind} {number}" for number, kind in enumerate(self.kinds))

    def initial(self) -> State:
        return State(tuple(Process("none") for _ in self.kinds))

    def with_process(self, s: State, i: int, p: Process, root: Root) -> State:
        return s._replace(processes=replaced(s.processes, i, p), root=root._replace(commit=root.commit + 1))

    # --- producers ---------------------------------------------------------------------------------------

    @step("gets a producer id", at="none", code="sparklog.metadata.model.sequences:allocate_producer_ids")
    def allocate(self, s: State, i: int, p: Process) -> Next:
        if self.kinds[i] == "producer":
            p = p._replace(at="on", number=s.root.next_id)
            yield f" {p.number}", self.with_process(s, i, p, s.root._replace(next_id=p.number + 1))

    @step("sends a batch", at="on", code="sparklog.metadata.model.sequences:check_sequence")
    def send(self, s: State, i: int, p: Process) -> Next:
        if self.kinds[i] != "producer" or p.sent == self.batches:
            return
        sequence, root = p.sent % SEQUENCES, s.root
        known = dict(root.known)
        last = known.get(p.number)
        behind = 0 if last is None else (last + 1 - sequence) % SEQUENCES
        if behind == 0:
            known[p.number] = sequence
            log = (*root.log, (p.number, p.sent, i))
            root = root._replace(log=log, known=tuple(sorted(known.items())))
            yield f" {p.sent}", self.with_process(s, i, p._replace(sent=p.sent + 1), root)
        elif behind < SEQUENCES // 2 and (p.number, p.sent, i) not in root.log:
            yield f" {p.sent}", Violation("lost: it is told that the batch is a repetition")
        # else it is refused as out of order: the producer begins anew

    # --- processes with the transactional id ---------------------------------------------------------------

    @step("is initialised", at="none", code="sparklog.metadata.model.transactions:begin_producer")
    def initialise(self, s: State, i: int, p: Process) -> Next:
        if self.kinds[i] != "process":
            return
        number, epoch = s.root.owner
        root = s.root
        if number < 0:
            number, epoch, root = root.next_id, -1, root._replace(next_id=root.next_id + 1)
        initialised = s.initialised + 1
        p = Process("on", number, epoch + 1, initialised)
        after = self.with_process(s, i, p, root._replace(owner=(number, epoch + 1)))
        yield f" as {number} in epoch {epoch + 1}", after._replace(initialised=initialised)

    @step("ends a transaction", at="on", code="sparklog.metadata.model.transactions:end_transaction")
    def end(self, s: State, i: int, p: Process) -> Next:
        is_owner = self.kinds[i] == "process" and s.root.owner == (p.number, p.epoch)
        if is_owner and p.sent != s.initialised:
            yield "", Violation("zombie: a process was initialised after it")

    # --- writers --------------------------------------------------------------------------------

    @step("writes a segment", at="none", code="sparklog.log.writer:LogWriter")
    def stage(self, s: State, i: int, p: Process) -> Next:
        if self.kinds[i] == "writer":
            birth = s.root.commit + s.root.ahead
            root = s.root._replace(files=s.root.files | {birth})
            yield (
                f" born at {birth}",
                s._replace(
                    processes=replaced(s.processes, i, p._replace(at="staged", number=birth)), root=root
                ),
            )

    @step("publishes it", at="staged", code="sparklog.metadata.model.sweeping:refuse_expired")
    def publish(self, s: State, i: int, p: Process) -> Next:
        if p.number < s.root.horizon:
            yield ": too old", s._replace(processes=replaced(s.processes, i, p._replace(at="none")))
        elif p.number not in s.root.files:
            yield "", Violation("missing: the segment is not in what was restored")
        else:
            yield "", self.with_process(s, i, p._replace(at="done"), s.root)

    # --- the world ------------------------------------------------------------------------------

    @world("another leader is elected")
    def elect(self, s: State) -> Next:
        if s.root.leader_epoch % LIFE < self.elections:
            epoch = s.root.leader_epoch + 1
            if epoch <= s.seen_epoch:
                yield f" in epoch {epoch}", Violation(f"repeated: a client has seen {s.seen_epoch}")
                return
            root = s.root._replace(leader_epoch=epoch, commit=s.root.commit + 1)
            yield f" in epoch {epoch}", s._replace(root=root, seen_epoch=epoch)

    @world("a backup is made")
    def back_up(self, s: State) -> Next:
        if s.backup is None:
            yield "", s._replace(backup=s.root)

    @world("the backup is put back, and restored")
    def restore(self, s: State) -> Next:
        """The effect of sparklog.metadata.model.restoring:restore_root."""
        if s.backup is None or s.restores == self.restores:
            return
        rules, old, now = self.rules, s.backup, s.restores + 1
        life = LIFE * (now if rules.by_time else 1)
        commit = old.commit + 1
        next_id = max(old.next_id, life) if rules.skips else old.next_id
        owner = old.owner
        if owner != (-1, -1):
            if rules.new_owner:
                owner, next_id = (next_id, 0), next_id + 1
            else:
                owner = (owner[0], owner[1] + 1)
        ahead = life if rules.births_ahead else old.ahead
        root = old._replace(
            known=() if rules.forgets else old.known,
            next_id=next_id,
            owner=owner,
            commit=commit,
            ahead=ahead,
            horizon=commit + ahead if rules.moves_horizon else old.horizon,
            leader_epoch=max(old.leader_epoch + 1, life) if rules.raises_leaders else old.leader_epoch,
        )
        yield "", s._replace(root=root, restores=now)
