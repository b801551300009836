"""A broker among those that may serve the root: its registration, its role, and following the others."""
