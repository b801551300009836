"""Kafka's messages: which APIs are served, how their entities are read and made, how errors are told."""
