"""One observation of the whole broker, and the names under which Prometheus hears of it."""
