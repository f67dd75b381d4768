"""Counting what a body holds."""

from hypothesis import given
from hypothesis import strategies as st

from fairlead.api.body_limits import count_of


@given(st.lists(st.sampled_from([b"{", b"a", b"{{{", b"text " * 40, b"{}" * 300]), max_size=40).map(b"".join))
def test_a_byte_is_counted_as_bytes_count_it(text: bytes) -> None:
    assert count_of(text, b"{") == text.count(b"{")
