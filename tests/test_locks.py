"""Locks: every package that a set-up fetches has its version and hashes in one, and they agree with each other."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
LOCKS: Final = sorted(path.name for path in ROOT.glob("requirements*.lock"))
BUILD: Final = "requirements-build.lock"


def entries(lock: str) -> list[str]:
    return re.split(r"^(?=[a-z0-9])", (ROOT / lock).read_text(), flags=re.MULTILINE)[1:]


def versions(lock: str) -> dict[str, list[str]]:
    """Of each package; several where they depend on Python's version or the platform."""
    found: dict[str, list[str]] = {}
    for entry in entries(lock):
        name, _, version = entry.splitlines()[0].rstrip(" \\").partition("==")
        found.setdefault(name, []).append(version)
    return found


@pytest.mark.parametrize("lock", LOCKS)
def test_everything_has_a_hash(lock: str) -> None:
    assert [entry for entry in entries(lock) if "--hash=sha256:" not in entry] == []


def test_what_builds_the_package_is_what_it_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    required = dict(each.split("==") for each in project["build-system"]["requires"])
    assert required.items() <= {name: version for name, (version,) in versions(BUILD).items()}.items()


def test_one_environment_can_hold_what_builds_and_what_develops() -> None:
    building, developing = versions(BUILD), versions("requirements-dev.lock")
    assert building.keys() & developing.keys()
    assert {name: building[name] for name in building if name in developing}.items() <= developing.items()


def test_the_installer_is_the_one_that_writes_the_locks() -> None:
    pins = (ROOT / "requirements-release.txt").read_text().splitlines()
    assert [f"{name}=={version}" for name, (version,) in versions("requirements-uv.lock").items()] == [
        pin for pin in pins if pin.startswith("uv==")
    ]
