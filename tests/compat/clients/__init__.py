"""Three Kafka clients behind one face."""

from tests.compat.clients.aio import AioKafka
from tests.compat.clients.confluent import Confluent
from tests.compat.clients.face import AtTime, Client, ProduceOptions, Seen, Sent, Start, seen_in_record
from tests.compat.clients.kafka_python import KafkaPython

__all__ = [
    "CLIENTS",
    "AioKafka",
    "AtTime",
    "Client",
    "Confluent",
    "KafkaPython",
    "ProduceOptions",
    "Seen",
    "Sent",
    "Start",
    "seen_in_record",
]

CLIENTS: tuple[Client, ...] = (Confluent(), KafkaPython(), AioKafka())
