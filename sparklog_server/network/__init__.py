"""Sockets: listeners, connections, frames, and the limits that keep them finite."""
