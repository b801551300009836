"""Segments, extents, and reading and writing partitions. Knows no topics' names but for errors."""
