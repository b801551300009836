"""What clients produce, on its way into the log: checked, grouped, made durable, published, acknowledged."""
