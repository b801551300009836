"""A worker of a share group: accepts messages, releases poison ones, and says what was confirmed.

share_worker.py BOOTSTRAP GROUP TOPIC; ends with its standard input.
"""

import json
import sys
import threading

from confluent_kafka import AcknowledgeType, ShareConsumer

POISON_EVERY = 100


def main(bootstrap: str, group: str, topic: str) -> None:
    ending = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        ending.set()

    threading.Thread(target=wait, daemon=True).start()
    consumer = ShareConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    while not ending.is_set():
        messages = [one for one in consumer.poll(timeout=0.5) or [] if one.error() is None]
        if not messages:
            continue
        for one in messages:
            is_poison = int(one.value() or b"0") % POISON_EVERY == 0
            consumer.acknowledge(one, AcknowledgeType.RELEASE if is_poison else AcknowledgeType.ACCEPT)
        failed = {
            (partition.topic, partition.partition)
            for partition, error in (consumer.commit_sync() or {}).items()
            if error is not None
        }
        done = [
            int(one.value() or b"0")
            for one in messages
            if (one.topic(), one.partition()) not in failed and int(one.value() or b"0") % POISON_EVERY
        ]
        print(json.dumps(done), flush=True)
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
