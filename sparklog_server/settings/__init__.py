"""Settings of the broker: one file an area, their sources, and the keys that only Kafka has."""
