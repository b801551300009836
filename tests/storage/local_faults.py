"""How a call of the system is made to fail."""

import os

import pytest


def failing(monkeypatch: pytest.MonkeyPatch, function: str, code: int, *, when: str = "") -> None:
    """Make an os function fail for paths or descriptors whose path contains `when`."""
    real = getattr(os, function)

    def shim(target: object, *args: object, **keywords: object) -> object:
        path = os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else str(target)
        if when in path:
            raise OSError(code, os.strerror(code))
        return real(target, *args, **keywords)

    monkeypatch.setattr(os, function, shim)
