"""The file of clients' keys."""

from __future__ import annotations

import errno
from hashlib import sha256
from pathlib import Path

import pytest

from fairlead.errors import UserError
from fairlead.extproc.client_keys import ClientKeys

DIGEST = sha256(b"key").hexdigest()


def keys(path: Path, text: str) -> ClientKeys:
    path.write_text(text)
    found = ClientKeys()
    found.use(path)
    return found


def test_a_line_is_a_name_and_a_hash_and_may_have_a_comment(tmp_path: Path) -> None:
    known = keys(tmp_path / "clients", f"# of the team\n\nalice  {DIGEST.upper()}  # until May\n")
    assert known.allow({b"authorization": b"Bearer key"})
    assert known.allow({b"x-api-key": b"key"})


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {b"authorization": b"key"},
        {b"authorization": b"Bearer other"},
        {b"authorization": b"Bearer key,Bearer key"},  # sent twice
        {b"authorization": b"Bearer " + DIGEST.encode()},
        {b"x-api-key": DIGEST.encode()},
        {b"authorization": b"Bearer other", b"x-api-key": b"key"},
    ],
)
def test_nothing_else_opens(headers: dict[bytes, bytes], tmp_path: Path) -> None:
    assert not keys(tmp_path / "clients", f"alice {DIGEST}\n").allow(headers)


def test_an_empty_file_lets_nobody_in(tmp_path: Path) -> None:
    known = keys(tmp_path / "clients", "")
    assert not known.allow({})
    assert not known.allow({b"x-api-key": b""})


@pytest.mark.parametrize("line", ["alice", "alice key", f"alice {DIGEST[:-1]}", f"{DIGEST}"])
def test_a_mistake_is_said_with_its_line_and_without_its_content(line: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"clients:2: write a name and the SHA-256") as refused:
        keys(tmp_path / "clients", f"bob {DIGEST}\n{line}\n")
    assert line not in str(refused.value)


def test_a_key_that_is_revoked_while_the_file_is_first_read_is_not_known_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, read_text = tmp_path / "clients", Path.read_text

    def replaced_after(file: Path, encoding: str) -> str:
        text = read_text(file, encoding=encoding)
        monkeypatch.setattr(Path, "read_text", read_text)
        (tmp_path / "new").write_text(f"bob {sha256(b'new').hexdigest()}\n")
        (tmp_path / "new").replace(file)
        return text

    monkeypatch.setattr(Path, "read_text", replaced_after)
    known = keys(path, f"alice {DIGEST}\n")
    assert known.refresh()
    assert [known.allow({b"x-api-key": key}) for key in (b"key", b"new")] == [False, True]


def test_the_hash_of_no_key_is_a_mistake_as_it_would_let_everybody_in(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"clients:2: this is the SHA-256 of no key at all"):
        keys(tmp_path / "clients", f"bob {DIGEST}\nalice {sha256(b'').hexdigest()}\n")


def test_a_change_is_read_once_and_a_mistake_leaves_the_last_keys(tmp_path: Path) -> None:
    known = keys(tmp_path / "clients", f"alice {DIGEST}\n")
    assert not known.refresh()
    (tmp_path / "clients").write_text("alice changed\n")
    with pytest.raises(UserError):
        known.refresh()
    assert known.allow({b"x-api-key": b"key"})
    assert not known.refresh()
    (tmp_path / "clients").unlink()
    with pytest.raises(UserError, match="cannot be read"):
        known.refresh()
    (tmp_path / "clients").write_text(f"bob {sha256(b'new').hexdigest()}\n")
    assert known.refresh()
    assert [known.allow({b"x-api-key": key}) for key in (b"key", b"new")] == [False, True]


def test_a_file_that_could_not_be_read_is_read_once_its_permissions_are_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = keys(tmp_path / "clients", "")
    (tmp_path / "clients").write_text(f"alice {DIGEST}\n")

    def denied(*_: object, **__: object) -> str:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as ours_to_read_no_more:  # a test that runs as root reads every file
        ours_to_read_no_more.setattr(Path, "read_text", denied)
        with pytest.raises(UserError, match="Permission denied"):
            known.refresh()
    assert not known.refresh(), "a mistake is said once"
    written_ns = (tmp_path / "clients").stat().st_ctime_ns
    while (tmp_path / "clients").stat().st_ctime_ns == written_ns:  # the kernel's clock for this goes in steps
        (tmp_path / "clients").chmod(0o640)
    assert known.refresh()
    assert known.allow({b"x-api-key": b"key"})
