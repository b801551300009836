"""A root for toy coordinators."""

from pathlib import Path

import pytest

from tests.server.coordination.toy import Toys


@pytest.fixture
def toys(tmp_path: Path) -> Toys:
    return Toys(str(tmp_path / "root"))
