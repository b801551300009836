"""Segments, extents, and reading and writing partitions. Topic names are only for errors."""
