"""Bounds of the numbers that documents hold: JSON knows none, but whatever computes with them does."""

from typing import Annotated

import msgspec

Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
MAX_OFFSET = (1 << 63) - 1
