"""Consumer groups: who is in them, what they were assigned, what they have committed."""
