"""When maintenance is due in a broker, and what came of it."""
