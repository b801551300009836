"""One module per Kafka API; protocol/registry.py imports every module found here."""
