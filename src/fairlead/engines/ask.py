"""One question to an engine over HTTP, bounded in time and size. Redirects are not followed: engines send none."""

from __future__ import annotations

import time
from typing import Final, Literal, NamedTuple

import aiohttp
from yarl import URL

Reason = Literal["timeout", "connect", "protocol", "too_large"]

_JSON: Final = {"content-type": "application/json"}
_HEADERS: Final = {"accept": "text/plain, application/json", "accept-encoding": "identity"}  # zip nothing for us


class Answer(NamedTuple):
    status: int
    body: bytes
    took_ms: float


class UnansweredError(Exception):
    """No usable answer came; `reason` is for counting."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason: Reason = reason


def new_session() -> aiohttp.ClientSession:
    """The client of all engines. Connections have no common limit: one that hangs must not delay another's probe."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        headers=_HEADERS,
    )


async def ask(
    session: aiohttp.ClientSession, url: URL, timeout_s: float, most_bytes: int, *, post: bytes | None = None
) -> Answer:
    """GET `url`, or POST the JSON `post` to it, whatever the status. Raises UnansweredError."""
    started_s = time.perf_counter()
    method, headers = ("GET", None) if post is None else ("POST", _JSON)
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    try:
        async with session.request(
            method, url, data=post, headers=headers, timeout=timeout, allow_redirects=False
        ) as response:
            body = await _bounded(response, most_bytes)
            return Answer(response.status, body, (time.perf_counter() - started_s) * 1e3)
    except TimeoutError:
        raise UnansweredError("timeout") from None
    except (aiohttp.ClientConnectionError, OSError):
        raise UnansweredError("connect") from None
    except (aiohttp.ClientError, ValueError):  # ValueError: headers that cannot be read
        raise UnansweredError("protocol") from None


async def _bounded(response: aiohttp.ClientResponse, most_bytes: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > most_bytes:
            response.close()  # not to be kept: the rest of the body is still on its way
            raise UnansweredError("too_large")
        parts.append(part)
    return b"".join(parts)
