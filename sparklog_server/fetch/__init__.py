"""The way of records to consumers: stored bytes, the hot tail, sessions, and the response's encoding."""
