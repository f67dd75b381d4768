"""The law of a stream's life, from the server's side. Source: RFC 9113, section 5.1.

             HEADERS            END_STREAM in                  END_STREAM out
    (idle) ----------> OPEN ---------------------> REMOTE_DONE ---------------> CLOSED
                        |      END_STREAM out                   END_STREAM in
                        +------------------------> LOCAL_DONE ----------------> CLOSED
    RST_STREAM, either way, closes from everywhere.

A server that does not push has no reserved streams; idle streams are known by their number, with no object. The table
has a row for each state and a column for each event; what is not there is a fault, whose kind is in `FAULTS`.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Final

from fairlead.edge.http2.frames import ErrorCode


class State(IntEnum):
    OPEN = 0
    REMOTE_DONE = 1  # half-closed (remote): the peer has sent all
    LOCAL_DONE = 2  # half-closed (local): we have sent all
    CLOSED = 3


class On(IntEnum):
    """What happens to a stream."""

    HEADERS_IN = 0  # trailers; the first HEADERS make the stream
    DATA_IN = 1
    END_IN = 2
    RESET_IN = 3
    HEADERS_OUT = 4
    DATA_OUT = 5
    END_OUT = 6
    RESET_OUT = 7


OPEN, REMOTE_DONE, LOCAL_DONE, CLOSED = State
HEADERS_IN, DATA_IN, END_IN, RESET_IN, HEADERS_OUT, DATA_OUT, END_OUT, RESET_OUT = On

TRANSITIONS: Final[dict[tuple[State, On], State]] = {
    (OPEN, HEADERS_IN): OPEN,
    (OPEN, DATA_IN): OPEN,
    (OPEN, END_IN): REMOTE_DONE,
    (OPEN, RESET_IN): CLOSED,
    (OPEN, HEADERS_OUT): OPEN,
    (OPEN, DATA_OUT): OPEN,
    (OPEN, END_OUT): LOCAL_DONE,
    (OPEN, RESET_OUT): CLOSED,
    (REMOTE_DONE, RESET_IN): CLOSED,
    (REMOTE_DONE, HEADERS_OUT): REMOTE_DONE,
    (REMOTE_DONE, DATA_OUT): REMOTE_DONE,
    (REMOTE_DONE, END_OUT): CLOSED,
    (REMOTE_DONE, RESET_OUT): CLOSED,
    (LOCAL_DONE, HEADERS_IN): LOCAL_DONE,
    (LOCAL_DONE, DATA_IN): LOCAL_DONE,
    (LOCAL_DONE, END_IN): CLOSED,
    (LOCAL_DONE, RESET_IN): CLOSED,
    (LOCAL_DONE, RESET_OUT): CLOSED,
}

# The same by position: this is looked up for every frame of DATA.
NEXT: Final = tuple(tuple(TRANSITIONS.get((state, on)) for on in On) for state in State)


class Ended(Enum):
    """How a stream came to be CLOSED: what may still come for it depends on that."""

    BY_BOTH = "END_STREAM both ways"
    BY_US = "we reset it"
    BY_PEER = "the peer reset it"


# A frame for a stream that may have no more: (the error, whether it ends the connection). None: the frame was under way
# when we reset the stream, and is dropped.
FAULTS: Final[dict[Ended, tuple[ErrorCode, bool] | None]] = {
    Ended.BY_BOTH: (ErrorCode.STREAM_CLOSED, True),
    Ended.BY_US: None,
    Ended.BY_PEER: (ErrorCode.STREAM_CLOSED, False),
}
