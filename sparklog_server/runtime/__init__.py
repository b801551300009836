"""What every part may need, and what knows nothing of Kafka: states, deadlines, waiting, log files."""
