"""The Kafka APIs, one module per family; registry.py imports every module found here."""
