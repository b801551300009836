"""Builds and checks what a release consists of: docs/internals/releasing.md."""
