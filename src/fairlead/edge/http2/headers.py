"""Header blocks: decoded once for all that are alike, checked, and written without any state.

We announce SETTINGS_HEADER_TABLE_SIZE 0. Once the peer has shrunk its table to that, a block means the same wherever it
stands, so a dict from a block's bytes to the request is exact; Envoy's blocks for one method are identical. Until then
each block is decoded: a client may send requests before it has seen our SETTINGS, and some (h2spec's) never heed it;
their table of 4,096 bytes does no harm. Decoding is the `hpack` library's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec
from hpack import Decoder, HPACKError, OversizedHeaderListError

from fairlead.edge.http2.frames import ErrorCode, PeerError
from fairlead.edge.http2.limits import Limits

_MEMO_BLOCKS: Final = 64
_MEMO_BLOCK_BYTES: Final = 1024
# More changes of the table's size than a block may begin with (RFC 7541, section 4.2): each takes a byte, and 1 us.
_SIZE_CHANGES: Final = re.compile(rb"([\x20-\x3e]|\x3f[\x80-\xff]*[\x00-\x7f]){3}")
_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+\Z")
_VALUE: Final = re.compile(rb"[^\x00\r\n]*\Z", re.DOTALL)
_CONNECTION_SPECIFIC: Final = frozenset(
    (b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade")
)
_PSEUDO: Final = frozenset((b":method", b":scheme", b":path", b":authority"))
_REQUIRED: Final = frozenset((b":method", b":scheme", b":path"))

Fields = tuple[tuple[bytes, bytes], ...]


class Request(msgspec.Struct, frozen=True, gc=False):
    """A request's pseudo-headers and fields. `malformed` says why it is to be reset (section 8.1.1); then no more is
    known."""

    method: bytes = b""
    path: bytes = b""
    fields: dict[bytes, bytes] = {}  # the first value of each name
    content_length: int | None = None
    malformed: str = ""


class HeaderReader:
    """A connection's header blocks, in the order in which they came."""

    def __init__(self, limits: Limits) -> None:
        self._decoder = Decoder(max_header_list_size=limits.header_list_bytes)
        self._acknowledged = False  # our SETTINGS
        self._memo: dict[bytes, Request] = {}

    def settings_acknowledged(self) -> None:
        """From now on the peer may make its dynamic table no larger than nothing."""
        self._acknowledged = True

    def request(self, block: bytes) -> Request:
        """Raises PeerError for a block that is not HPACK, or decodes to too much."""
        known = self._memo.get(block)
        if known is not None:
            return known
        request = _checked(self.decode(block))
        if self._decoder.header_table_size == 0 and len(block) <= _MEMO_BLOCK_BYTES:
            if len(self._memo) >= _MEMO_BLOCKS:
                self._memo.clear()
            self._memo[block] = request
        return request

    def decode(self, block: bytes) -> Fields:
        """Raises PeerError."""
        if _SIZE_CHANGES.match(block):
            raise PeerError(ErrorCode.COMPRESSION_ERROR, "a header block that changes the table's size three times")
        before = self._decoder.header_table_size
        try:
            fields = tuple((bytes(name), bytes(value)) for name, value in self._decoder.decode(block, raw=True))
        except OversizedHeaderListError:
            raise PeerError(ErrorCode.ENHANCE_YOUR_CALM, "a header list too long") from None
        except (HPACKError, IndexError, UnicodeError) as error:
            raise PeerError(ErrorCode.COMPRESSION_ERROR, f"a header block that is not HPACK: {error}") from None
        size = self._decoder.header_table_size
        if self._acknowledged and size not in (0, before):
            raise PeerError(ErrorCode.COMPRESSION_ERROR, f"a dynamic table of {size} bytes; our SETTINGS say 0")
        return fields


def trailers_fault(fields: Fields) -> str:
    """Why these are no trailers, or nothing."""
    return next((why for name, value in fields if (why := _field_fault(name, value))), "")


def _checked(fields: Fields) -> Request:
    pseudo: dict[bytes, bytes] = {}
    values: dict[bytes, bytes] = {}
    content_length: int | None = None
    for name, value in fields:
        if name.startswith(b":"):
            if name not in _PSEUDO or name in pseudo or values or not _VALUE.match(value):
                return Request(malformed=f"pseudo-header {name.decode('latin-1')} is unknown, repeated or late")
            pseudo[name] = value
            continue
        if why := _field_fault(name, value):
            return Request(malformed=why)
        if name == b"content-length":
            if not value.isdigit() or len(value) > 18 or content_length not in (None, int(value)):
                return Request(malformed="content-length is not one number")
            content_length = int(value)
        values.setdefault(name, value)
    if not pseudo.keys() >= _REQUIRED or not pseudo[b":path"]:
        return Request(malformed=":method, :scheme or :path is missing")
    return Request(pseudo[b":method"], pseudo[b":path"], values, content_length)


def _field_fault(name: bytes, value: bytes) -> str:
    if not _NAME.match(name):
        return "a field name that is not lower case or not a name"
    if not _VALUE.match(value):
        return "a field value with a line break or a null"
    if name in _CONNECTION_SPECIFIC or (name == b"te" and value != b"trailers"):
        return f"the connection-specific field {name.decode('latin-1')}"
    return ""


def header_block(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """`fields` as literals that nobody indexes: the block needs no state, so a constant one is written once."""
    return b"".join(b"\x00" + _text(name) + _text(value) for name, value in fields)


def _text(text: bytes) -> bytes:
    length = len(text)
    if length < 127:
        return bytes((length,)) + text
    encoded = bytearray((127,))
    length -= 127
    while length > 127:
        encoded.append(length & 127 | 128)
        length >>= 7
    encoded.append(length)
    return bytes(encoded) + text
