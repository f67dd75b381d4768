import pytest

from fairlead.api.durations import duration_s


@pytest.mark.parametrize(("text", "seconds"), [(b"2s", 2.0), (b"500ms", 0.5), (b"1m30s", 90.0), (b"1.5h", 5400.0)])
def test_durations_as_go_writes_them(text: bytes, seconds: float) -> None:
    assert duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", [b"", b"2", b"s", b"-2s", b"0s", b"2s ", b"2 s", b"1e9s", b"9" * 100 + b"s", b"2s,3s"])
def test_anything_else_is_none(text: bytes) -> None:
    assert duration_s(text) is None
