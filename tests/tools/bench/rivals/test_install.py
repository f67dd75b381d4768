"""Rivals are installed once, outside the repository; one that cannot be had says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.tools.bench.rivals.install import UnavailableError, cache_folder, installed
from fairlead.tools.bench.rivals.pins import PINS, SMG, Pin

IN_GO = Pin("a-picker", "1.0.0", "go", "example.invalid/picker")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "fairlead" / "rivals"


def test_an_installed_rival_is_used_as_it_is(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    folder = cache / f"smg-{SMG.version}"
    folder.mkdir(parents=True)
    (folder / ".installed").touch()

    assert installed(SMG) == folder


def test_without_the_variable_the_cache_is_in_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_folder() == Path.home() / ".cache" / "fairlead" / "rivals"


@pytest.mark.slow
def test_a_package_that_pip_does_not_find_says_so_and_what_was_left_half_made_goes(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    half_made = cache / f"smg-{SMG.version}" / "left over"
    half_made.mkdir(parents=True)

    with pytest.raises(UnavailableError, match=f"pip cannot install smg=={SMG.version}: .*No matching distribution"):
        installed(SMG)
    assert not half_made.exists()


def test_a_rival_in_go_needs_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UnavailableError, match="written in Go, and there is no `go` here; install Go"):
        installed(IN_GO)


def test_a_build_that_fails_gives_the_end_of_what_go_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = tmp_path / "go"
    go.write_text(
        "#!/bin/sh\necho 'go: reading the list: 403 Forbidden' >&2\nprintf '\\tnot available\\n' >&2\nexit 1\n"
    )
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    with pytest.raises(UnavailableError) as caught:
        installed(IN_GO)
    assert str(caught.value) == (
        "go cannot build example.invalid/picker@v1.0.0: go: reading the list: 403 Forbidden not available"
    )


def test_a_cache_that_cannot_be_written_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a file"))
    with pytest.raises(UnavailableError, match="cannot be written"):
        installed(SMG)


def test_every_rival_has_a_version() -> None:
    assert all(pin.version.count(".") == 2 for pin in PINS)
    assert len({pin.title for pin in PINS}) == len(PINS)
