"""Mirror: copies topics, records and groups' offsets of an Apache Kafka cluster into a root.

Only kafka_source.py imports a Kafka client (confluent-kafka, the extra `kafka`), and opens sockets.
"""
