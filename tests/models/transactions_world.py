"""The world of transactions.py: processes of an application, brokers, the image, safeguards."""

from dataclasses import dataclass
from typing import NamedTuple

NOBODY, NONE = -1, 0
EMPTY, OPEN, COMMITTED, ABORTED = "empty", "open", "committed", "aborted"
INIT, ADD, SEND, OFFSET, END = "init", "add", "send", "offset", "end"
NO_SEQUENCE = -1


class Request(NamedTuple):
    """`txn` and `client` are the truth, and not in the request."""

    kind: str
    client: int
    txn: int
    epoch: int = NONE
    record: int = 0
    sequence: int = 0
    verdict: str = ""
    second: bool = False  # the protocol, of SEND, OFFSET and END


class Known(NamedTuple):
    """What an image says of the transactional id."""

    epoch: int = NONE
    number: int = 0
    is_open: bool = False


class Accepted(NamedTuple):
    """A request that a broker has read, and what its image said then."""

    request: Request
    known: Known

    @property
    def number(self) -> int:
        """Return the number of the transaction that was open; 0 if none of this producer was."""
        known = self.known
        return known.number if known.is_open and known.epoch == self.request.epoch else 0


class Staged(NamedTuple):
    """A record, or a group's offset. `txn` is the truth, and not in the image."""

    record: int
    txn: int
    sequence: int


class Image(NamedTuple):
    epoch: int = NONE
    number: int = 0  # of the transaction that is open, or was last
    phase: str = EMPTY
    staged: tuple[Staged, ...] = ()
    next_sequence: int = 0
    appended: int = 0  # sequences of this epoch that were committed
    before: int = 0  # next_sequence, when the transaction was opened
    visible: int = 0
    owner: int = NOBODY  # whose epoch it is
    ended_epoch: int = NONE  # of the last end, if that has raised it

    @property
    def known(self) -> Known:
        """Return what a broker captures of this image."""
        return Known(self.epoch, self.number, self.phase == OPEN)


class Client(NamedTuple):
    at: str = "new"  # "idle", "open", "waits", "fenced"
    epoch: int = NONE
    txn: int = 0
    sequence: int = 0
    sent: int = 0  # in this transaction
    acknowledged: int = 0
    doubt: bool = False  # it does not know whether a record has arrived
    waits_for: Request | None = None
    second: bool = False  # the protocol that it speaks


class Broker(NamedTuple):
    at: str = "up"
    known: Known = Known()  # by its image, which may be an old one
    accepted: tuple[Accepted, ...] = ()


class State(NamedTuple):
    processes: tuple[Broker, ...]
    clients: tuple[Client, ...]
    image: Image = Image()
    network: tuple[Request, ...] = ()
    dropped: int = 0  # records of which a client was told: aborted
    wanted: int = 0  # transactions whose client has asked to commit them
    txns: int = 0
    records: int = 0
    offsets: int = 0
    copies: int = 0  # left, as all below
    losses: int = 0
    timeouts: int = 0
    switches: int = 0
    inits: tuple[int, ...] = ()
    is_late: bool = False  # something has been aborted for the time that it took


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The safeguards, as they should be."""

    checks_epoch: bool = True  # an action names the producer's epoch, and applies in it only
    names_number: bool = True  # with the first protocol: an end names the transaction that was open
    record_names_number: bool = True  # with the first protocol: so does a record
    offset_names_number: bool = True  # with the first protocol: so does a group's offset
    init_aborts: bool = True  # what an older process has open, in the same commit
    abort_drops: bool = True  # what is staged
    keeps_sequences: bool = True  # of what was aborted, too
    checks_sequence: bool = True  # of what is staged as of what is visible
    remembers_verdict: bool = True  # a repeated end is answered by what was decided
    timeout_raises: bool = True  # the epoch, so that the late commit fails
    raises_in_doubt: bool = True  # clients: a new epoch, if an aborted record may still arrive
    end_raises: bool = True  # with the second protocol: the epoch, in the same commit
    remembers_epoch: bool = True  # a repeated end is answered in the epoch of the last one
