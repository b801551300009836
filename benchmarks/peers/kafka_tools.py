"""Kafka's command-line tools, by the names of their scripts: the classes that bin/*.sh would start."""

import subprocess

from benchmarks.peers.fetching import Jars
from benchmarks.peers.kafka_process import QUICK_START, java

CLASSES = {
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-share-consumer-perf-test": "org.apache.kafka.tools.ShareConsumerPerformance",
    "kafka-share-groups": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
    "kafka-verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "kafka-verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
}
HEAP = "-Xmx512m"  # as kafka-run-class.sh and the perf tests' scripts give it
TOOL_SECONDS = 60


def command(jars: Jars, tool: str, *words: str) -> list[str]:
    """The command line of a tool, with the settings that its script gives the JVM."""
    return java(jars, CLASSES[tool], *words, heap=HEAP)


def run_tool(
    jars: Jars, tool: str, *words: str, stdin: str | None = None, seconds: float = TOOL_SECONDS
) -> str:
    """Run a tool that does little work to its end; what it printed to both outputs.

    Raises:
        RuntimeError: it failed; with what it printed.
    """
    done = subprocess.run(
        java(jars, CLASSES[tool], *words, heap=HEAP, jvm=QUICK_START),
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{tool} {' '.join(words)}: exit code {done.returncode}\n{done.stdout[-4000:]}")
    return done.stdout
