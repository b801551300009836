"""Kafka's messages: the served APIs, reading and writing of their entities, and error codes."""
