"""What the commands of maintenance have in common.

Not here: the commands (optimize.py, compact.py, expire.py, vacuum.py, maintain.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparklog.cli.notes import note

if TYPE_CHECKING:
    from sparklog.client import SparkLog


def note_of_version(log: SparkLog, version: int) -> None:
    """Before an order is carried out, say whom it may stop: its commits are documents of this version."""
    from sparklog.metadata import METADATA_VERSION_KEY, agreed_version

    agreed = agreed_version(log.image.configs)
    if version > agreed:
        note(
            f"This root has {METADATA_VERSION_KEY}={agreed}; what this command publishes is of version "
            f"{version}. An older sparklog that does not know it stops there with UNSUPPORTED_METADATA, "
            "until it is upgraded."
        )
