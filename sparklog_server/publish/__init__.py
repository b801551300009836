"""What clients produce, on its way into the log: checked, bundled, made durable, published, acknowledged."""
