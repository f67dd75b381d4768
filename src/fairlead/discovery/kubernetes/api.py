"""A small client of the Kubernetes API: GET, and watches. Plain aiohttp, as Fairlead has it already.

The clients on PyPI leave list and watch to the caller, the part that is easy to get wrong, and bring 0.5 to 24 MB.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final, Self

import aiohttp
import msgspec

from fairlead.discovery.kubernetes.access import Access
from fairlead.discovery.kubernetes.objects import Status
from fairlead.errors import UserError

_CONNECT_S: Final = 5.0
_LIST_S: Final = 60.0  # thousands of pods through a busy API server
_SILENCE_S: Final = 10.0  # more than a watch was to last
_MOST_LINE_BYTES: Final = 16 << 20  # etcd keeps objects up to 1.5 MiB

Parameters = Mapping[str, str]


class ApiError(Exception):
    """The API server refused, or did not answer; `code` is its HTTP status, 0 where it gave none."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Api:
    """One API server. `close` ends the connections to it."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, path: str, parameters: Parameters) -> bytes:
        """The body of a 200. Raises ApiError."""
        timeout = aiohttp.ClientTimeout(total=_LIST_S, sock_connect=_CONNECT_S)
        async with self._answer(path, parameters, timeout) as answer:
            return await answer.read()

    async def watch(self, path: str, parameters: Parameters, lasts_s: int) -> AsyncGenerator[bytes, None]:
        """The lines of a watch, until the API server ends it after `lasts_s`. Raises ApiError. To be closed."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=lasts_s + _SILENCE_S)
        wanted = {**parameters, "watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(lasts_s)}
        begun = b""
        async with self._answer(path, wanted, timeout) as answer:
            async for part in answer.content.iter_any():
                *lines, begun = (begun + part).split(b"\n")  # `readline` has a limit, which a large pod exceeds
                for line in lines:
                    yield line
                if len(begun) > _MOST_LINE_BYTES:
                    raise ApiError(0, f"an event has more than {_MOST_LINE_BYTES} bytes")

    @asynccontextmanager
    async def _answer(
        self, path: str, parameters: Parameters, limits: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A 200. What goes wrong until the end of the `with` is raised as ApiError."""
        if self._session is None:
            self._session = aiohttp.ClientSession()
        try:
            access = self.access = self.access.renewed()
            asked = self._session.get(
                access.url + path,
                params=parameters,
                headers=access.headers(),
                ssl=access.tls(),
                timeout=limits,
                allow_redirects=False,
            )
            async with asked as answer:
                if answer.status != 200:
                    raise ApiError(answer.status, _reason(answer.status, await answer.content.read(65_536)))
                yield answer
        except UserError as error:
            raise ApiError(0, str(error)) from None
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise ApiError(0, f"{self.access.url} does not answer ({str(error) or type(error).__name__})") from None


def _reason(code: int, body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=Status).message or f"HTTP {code}"
    except (msgspec.DecodeError, UnicodeDecodeError):
        return f"HTTP {code}"
