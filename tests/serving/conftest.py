from __future__ import annotations

from pathlib import Path

import pytest

from tests.serving.world import ConfigFile


@pytest.fixture
def file(tmp_path: Path) -> ConfigFile:
    """A configuration file that is not written yet."""
    return ConfigFile(tmp_path)
