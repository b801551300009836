"""Bounds and sizes that settings of several areas are declared with."""

INT_MAX = (1 << 31) - 1
MIB = 1 << 20
