"""One module per Kafka API; registry.py imports every module found here."""
