"""What one peer may make us hold and do. Every bound of the core is here, with its unit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Defaults suit Envoy, which opens one connection a worker and keeps a stream for as long as an answer lasts."""

    concurrent_streams: int = 1024  # beyond: REFUSED_STREAM, and a client opens another connection
    stream_window_bytes: int = 256 * 1024  # that may come unasked; a longer message gets its window when announced
    connection_window_bytes: int = 16 * 1024 * 1024
    header_list_bytes: int = 16 * 1024  # decoded, with 32 bytes a field as HPACK counts
    header_block_bytes: int = 16 * 1024  # of HEADERS and all its CONTINUATION together
    continuations: int = 16  # frames of one header block
    waiting_send_bytes: int = 128 * 1024 * 1024  # that the peer's windows hold back, over all streams
    events_a_turn: int = 64  # then other connections and timers of the loop have their turn
    # What earns nothing (PING, SETTINGS, empty DATA, resets before a message, ...) is paid from a budget of work that
    # messages and time fill again. One unit is about 2 us.
    work_burst: int = 4000
    work_refill_per_s: int = 1000
    work_a_message: int = 8  # earned by each complete message
    settings_ack_s: float = 10.0
    preface_s: float = 10.0
    keepalive_idle_s: float = 60.0  # nothing received for so long: PING
    keepalive_answer_s: float = 20.0  # and nothing since: the peer is gone
    drain_answer_s: float = 1.0  # without an answer to the draining PING, the last GOAWAY is sent anyway
    stalled_send_s: float = 30.0  # a peer that opens no window, or reads nothing, for so long is closed
