"""The lab's environment: built once, and a step that fails says which it was and what to do."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fairlead.errors import UserError
from lab import environment


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the environment will be, in a cache of its own; half of one is there."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = environment.folder()
    folder.mkdir(parents=True)
    (folder / "pyvenv.cfg").touch()
    return folder


def test_half_an_environment_is_built_anew_and_a_step_that_fails_is_named_with_what_to_do(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho ensurepip is not available; exit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(UserError, match=r"(?s)step 1, make a virtual.*ensurepip is not available.*python3-venv"):
        environment.build(say=lambda _: None)
    assert not folder.exists()


def test_an_environment_that_is_there_is_not_built_again(folder: Path) -> None:
    (folder / "complete").touch()
    said: list[str] = []
    assert environment.build(say=said.append) == folder
    assert said == []
