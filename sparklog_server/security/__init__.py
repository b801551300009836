"""Permissions of clients."""
