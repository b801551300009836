"""The path of produced batches into the log: validated, made durable and published in group commits."""
