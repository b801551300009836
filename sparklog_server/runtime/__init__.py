"""Shared foundations, independent of the Kafka protocol: states, deadlines, waiting, log files."""
