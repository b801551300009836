"""A Kafka-style commit log native to PySpark."""
