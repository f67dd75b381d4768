"""Ask a running engine what it is: its models, its kind and its context length."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

import aiohttp
import msgspec

from fairlead.errors import UserError

_TIMEOUT = aiohttp.ClientTimeout(total=5)


class FoundEngine(msgspec.Struct, frozen=True):
    """One engine as it describes itself."""

    address: str  # host:port
    model: str  # the first that it lists; the others are its adapters
    engine: Literal["vllm", "sglang"]
    max_model_len: int | None


async def discover(addresses: Sequence[str]) -> list[FoundEngine]:
    """Ask all engines at once. Raises UserError that names the first one that does not answer as an engine."""
    async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
        return await asyncio.gather(*(_ask(session, address) for address in addresses))


async def _ask(session: aiohttp.ClientSession, address: str) -> FoundEngine:
    url = f"http://{address}/v1/models"
    try:
        async with session.get(url, allow_redirects=False) as response:
            status, body = response.status, await response.read()
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        reason = str(error) or type(error).__name__
        raise UserError(f"{url} does not answer ({reason}); is the engine up, and is this its address?") from None
    if status != 200:
        raise UserError(f"{url} answers {status}; give the address of a vLLM or SGLang server")
    return _read(address, body, url)


def _read(address: str, body: bytes, url: str) -> FoundEngine:
    try:
        first: dict[str, Any] = msgspec.json.decode(body)["data"][0]
        model, owner, length = first["id"], str(first.get("owned_by")), first.get("max_model_len")
    except (msgspec.DecodeError, LookupError, TypeError, AttributeError):
        raise UserError(f"{url} lists no model; give the address of a vLLM or SGLang server") from None
    kind: Literal["vllm", "sglang"] = "sglang" if owner == "sglang" else "vllm"
    return FoundEngine(address, str(model), kind, length if isinstance(length, int) and length > 0 else None)
