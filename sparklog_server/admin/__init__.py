"""What the admin APIs share: changes with an outcome per topic, and settings as Kafka shows them."""
