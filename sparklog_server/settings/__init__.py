"""Settings of the broker: one file per area, their sources, and the keys that only Kafka has."""
