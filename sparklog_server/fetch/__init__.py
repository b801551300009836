"""The path of records to consumers: stored bytes, the tail cache, sessions, and the response's encoding."""
