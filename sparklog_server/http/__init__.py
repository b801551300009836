"""The HTTP server: /metrics, /health and /ready."""
