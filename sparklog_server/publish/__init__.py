"""What clients produce, on its way into the log: validated, made durable and published in group commits."""
