"""Fields of a form are those that an engine would find, or the form is not read."""

from __future__ import annotations

import pytest

from fairlead.api.multipart import field_spans

FORM = b"multipart/form-data; boundary=B"


def fields(head: bytes, content_type: bytes = FORM) -> list[tuple[str, bytes]] | None:
    """Of a form with one part, whose value is `large`."""
    body = b"--B\r\n%b\r\n\r\nlarge\r\n--B--\r\n" % head
    found = field_spans(body, content_type)
    return None if found is None else [(name, body[slice(*span)]) for name, span in found]


@pytest.mark.parametrize(
    "head",
    [
        b'Content-Disposition: form-data; name="model"',
        b"content-disposition:form-data;name=model",
        b'Content-Type: x; name=other\r\nContent-Disposition: form-data; name="model"',
        b'Content-Disposition: form-data; filename="a; name=other"; name="model"',
        b'Content-Disposition: form-data; filename="\\"; name=other"; NAME = "model"',
    ],
)
def test_a_field_has_the_name_of_its_disposition(head: bytes) -> None:
    assert fields(head) == [("model", b"large")]


@pytest.mark.parametrize(
    "head",
    [
        b'Content-Disposition: form-data; name="model"\r\nContent-Disposition: form-data; name="other"',
        b'Content-Disposition: form-data; name="model"; name="other"',
        b'Content-Disposition: form-data; name="mod\\el"',
        b"Content-Disposition: form-data; name=\"other\"; name*=utf-8''mod%65l",
        b'Content-Disposition: form-data; name*0="mod"; name*1="el"',
        b"Content-Type: text/plain",
    ],
)
def test_a_form_that_could_be_read_in_two_ways_is_not_read(head: bytes) -> None:
    assert fields(head) is None


@pytest.mark.parametrize("content_type", [FORM + b"; boundary=C", b"multipart/form-data"])
def test_a_form_has_one_boundary(content_type: bytes) -> None:
    assert fields(b'Content-Disposition: form-data; name="model"', content_type) is None
