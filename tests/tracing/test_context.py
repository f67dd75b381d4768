"""The W3C's traceparent header, as any client may send it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.tracing.context import TraceContext, read_traceparent

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(("flags", "sampled"), [("01", True), ("00", False), ("03", True)])
def test_the_trace_its_parent_and_whether_it_is_sampled_are_read(flags: str, sampled: bool) -> None:
    context = read_traceparent(f"00-{TRACE}-{SPAN}-{flags}".encode())
    assert context == TraceContext(bytes.fromhex(TRACE), bytes.fromhex(SPAN), sampled)


def test_a_later_version_may_have_more_parts() -> None:
    assert read_traceparent(f"01-{TRACE}-{SPAN}-01-more".encode()) is not None


@pytest.mark.parametrize(
    "value",
    [
        "",
        "00",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01,00-{TRACE}-{SPAN}-01",
    ],
)
def test_what_the_standard_says_to_ignore_is_ignored(value: str) -> None:
    assert read_traceparent(value.encode()) is None


@given(st.binary(max_size=400))
def test_no_bytes_raise(value: bytes) -> None:
    read_traceparent(value)
