"""Share groups: queues over topics (KIP-932), with dead-letter topics (KIP-1191)."""
