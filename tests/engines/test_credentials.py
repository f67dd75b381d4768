"""Files of keys and authorities: read again when they change, and never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.access import PLAIN, Access
from fairlead.engines.credentials import Credentials
from fairlead.errors import UserError
from tests.edge.certificates import Authority


def key_file(path: Path, text: str) -> Credentials:
    path.write_text(text)
    return Credentials(Access(api_key_file=str(path)))


def test_plain_http_has_neither() -> None:
    assert (Credentials(PLAIN).header(), Credentials(PLAIN).context()) == (b"", None)


def test_a_key_is_one_line_with_or_without_its_end(tmp_path: Path) -> None:
    assert key_file(tmp_path / "key", "secret\n").header() == b"authorization: Bearer secret\r\n"
    assert key_file(tmp_path / "bare", "secret").header() == b"authorization: Bearer secret\r\n"


def test_a_key_that_is_replaced_is_read_again(tmp_path: Path) -> None:
    credentials = key_file(tmp_path / "key", "old")
    assert b"old" in credentials.header()
    (tmp_path / "new").write_text("newer")
    (tmp_path / "new").replace(tmp_path / "key")
    assert b"newer" in credentials.header()


@pytest.mark.parametrize("gone", [True, False])
def test_a_key_that_is_gone_or_half_written_leaves_the_last_one(gone: bool, tmp_path: Path) -> None:
    credentials = key_file(tmp_path / "key", "old")
    credentials.header()
    (tmp_path / "key").unlink() if gone else (tmp_path / "key").write_text("")
    assert b"old" in credentials.header()


@pytest.mark.parametrize("text", ["", "two words", "two\nlines", "sécret", "x" * 5000])
def test_what_is_no_key_is_refused_without_showing_it(text: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"api_key_file: .* holds no key") as refused:
        key_file(tmp_path / "key", text).header()
    assert not text or text not in str(refused.value)


def test_an_authority_that_is_replaced_is_read_again(tmp_path: Path) -> None:
    credentials = Credentials(Access(ca=str(Authority(tmp_path / "a").path), server_name="fairlead"))
    first = credentials.context()
    assert credentials.context() is first
    (tmp_path / "a" / "ca.pem").write_bytes(Authority(tmp_path / "b").pem + b"\n")
    assert credentials.context() is not first


def test_what_is_no_authority_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("not one")
    with pytest.raises(UserError, match=r"tls.ca: .* holds no certificate in PEM"):
        Credentials(Access(ca=str(tmp_path / "ca.pem"), server_name="x")).context()
    with pytest.raises(UserError, match=r"tls.ca: .* cannot be read \(No such file or directory\)"):
        Credentials(Access(ca=str(tmp_path / "none.pem"), server_name="x")).context()
