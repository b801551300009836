"""sparklog-server: Kafka clients' door to a root. See broker.py for the parts and how they hang together."""
