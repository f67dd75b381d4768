"""What several files of this folder start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fairlead.extproc.body_reader import BodyReader


@pytest.fixture(scope="module")
def reader() -> Iterator[BodyReader]:
    reader = BodyReader(1)
    reader.start()
    yield reader
    reader.stop()
