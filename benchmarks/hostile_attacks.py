"""The attacks by their names, and what several of them need."""

from collections.abc import Callable

from benchmarks.hostile_broker import Broker

Frames = tuple[list[bytes], bool]
Attack = Callable[[Broker], Frames]
ATTACKS: dict[str, Attack] = {}


def attack(name: str) -> Callable[[Attack], Attack]:
    def keep(function: Attack) -> Attack:
        ATTACKS[name] = function
        return function

    return keep


def with_topic(broker: Broker, partitions: int = 1, name: str = "victim") -> None:
    topic = {"_": "CreatableTopic", "name": name, "num_partitions": partitions, "replication_factor": 1,
             "assignments": [], "configs": []}  # fmt: skip
    broker.ask(19, 5, topics=[topic], timeout=30_000, validate_only=False)


def names(size: int, count: int, prefix: str = "") -> list[str]:
    """So many different names, of at least so many characters."""
    return [f"{prefix}{number:x}".rjust(size, "x") for number in range(count)]
