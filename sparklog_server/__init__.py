"""sparklog-server: Kafka clients' door to a root. See broker.py for the parts and how they hang together."""

CONFIG_VARIABLE = "SPARKLOG_SERVER_CONFIG"  # names the file of settings; is none itself
