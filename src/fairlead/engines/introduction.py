"""Ask a running engine what it is: its models, its kind, its context length, and where it publishes KV events."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import aiohttp
import msgspec
import structlog

from fairlead.access import Access
from fairlead.addresses import host_and_port
from fairlead.api.paths import MODELS
from fairlead.dialects import DEFAULT, DIALECTS, KvPublisher, ServerInfo, owner_is, read_models, titles
from fairlead.engines.ask import UnansweredError, ask_once
from fairlead.errors import UserError

_TIMEOUT = aiohttp.ClientTimeout(total=5)
_ASK_S: Final = 2.0
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 2.0
_MOST_BYTES: Final = 1 << 20
_MOST_AT_ONCE: Final = 32
_LOG_AFTER: Final = 20  # questions without an answer

log = structlog.get_logger("fairlead.engines")


class FoundEngine(msgspec.Struct, frozen=True):
    """An engine's description of itself."""

    address: str  # host:port
    model: str  # the first model that it lists and that is no adapter
    engine: str  # its dialect
    max_model_len: int | None
    info: ServerInfo = ServerInfo()

    def kv_events(self) -> dict[str, str] | None:
        """Where it publishes KV events, in the form of the configuration; None if it does not or does not say."""
        published = self.info.kv_events
        return None if published is None else _zmq_addresses(self.address, published)


def _zmq_addresses(address: str, published: KvPublisher) -> dict[str, str]:
    host, _ = host_and_port(address)
    at = f"tcp://[{host}]" if ":" in host else f"tcp://{host}"
    addresses = {"events": f"{at}:{published.events_port}"}
    if published.replay_port is not None:
        addresses["replay"] = f"{at}:{published.replay_port}"
    return addresses | ({"topic": published.topic} if published.topic else {})


async def discover(addresses: Sequence[str]) -> list[FoundEngine]:
    """Ask all engines at once. Raises UserError that names the first one that does not answer as an engine."""
    async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
        return await asyncio.gather(*(_ask(session, address) for address in addresses))


class Introductions:
    """Asks engines that were discovered what they serve, each until it answers: none gets traffic before."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self.known: dict[str, FoundEngine] = {}  # by address
        self._changed = changed
        self._accesses: Mapping[str, Access] = {}  # a reload may change them before an engine has answered
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._turns = asyncio.Semaphore(_MOST_AT_ONCE)

    @property
    def awaited(self) -> Collection[str]:
        """Addresses that have not answered yet."""
        return self._tasks.keys()

    def want(self, addresses: Mapping[str, Access]) -> None:
        """Know these, reached like this, and forget all others."""
        wanted, self._accesses = set(addresses), addresses
        for address in [each for each in self.known if each not in wanted]:
            del self.known[address]
        for address in [each for each in self._tasks if each not in wanted]:
            self._tasks.pop(address).cancel()
        for address in addresses:
            if address not in self.known and address not in self._tasks:
                self._tasks[address] = asyncio.create_task(self._meet(address), name=f"ask {address}")

    def forget(self, address: str) -> None:
        """Ask it anew: it does not serve what it said."""
        self.known.pop(address, None)

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _meet(self, address: str) -> None:
        pause_s, asked = _FIRST_PAUSE_S, 0
        while True:
            async with self._turns:
                found, reason = await _listed(address, self._accesses[address])
            if found is not None:
                self.known[address] = found
                del self._tasks[address]
                self._changed()
                return
            asked += 1
            if asked == _LOG_AFTER:
                log.warning("a discovered engine does not say what it serves", endpoint=address, reason=reason)
            await asyncio.sleep(pause_s * random.uniform(0.8, 1.2))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


async def _listed(address: str, access: Access) -> tuple[FoundEngine | None, str]:
    """What the engine lists, or why that is not known."""
    try:
        answer = await ask_once(address, MODELS, _ASK_S, _MOST_BYTES, access=access)
    except UnansweredError as error:
        return None, error.reason
    if answer.status != 200:
        return None, f"{MODELS} answers {answer.status}"
    try:
        return _read(address, answer.body, MODELS), ""
    except UserError as error:
        return None, str(error)


async def _ask(session: aiohttp.ClientSession, address: str) -> FoundEngine:
    url = f"http://{address}{MODELS}"
    try:
        async with session.get(url, allow_redirects=False) as response:
            status, body = response.status, await response.read()
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        reason = str(error) or type(error).__name__
        raise UserError(f"{url} does not answer ({reason}); is the engine up, and is this its address?") from None
    if status != 200:
        raise UserError(f"{url} answers {status}; give the address of a {titles()} server")
    found = _read(address, body, url)
    return msgspec.structs.replace(found, info=await _server_info(session, found))


async def _server_info(session: aiohttp.ClientSession, found: FoundEngine) -> ServerInfo:
    """What it says of itself; nothing is known of an engine that has no such page."""
    dialect = DIALECTS[found.engine]
    try:
        async with session.get(f"http://{found.address}{dialect.info_path}", allow_redirects=False) as response:
            said = msgspec.json.decode(await response.read()) if response.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ServerInfo()
    return dialect.read_info(said) if isinstance(said, dict) else ServerInfo()


def _read(address: str, body: bytes, url: str) -> FoundEngine:
    try:
        page: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        page = None
    models = [card for card in read_models(page, DIALECTS[DEFAULT]) if card.parent is None]
    if not models:
        raise UserError(f"{url} lists no model; give the address of a {titles()} server")
    return FoundEngine(address, models[0].name, owner_is(models[0].owner).name, models[0].max_model_len)
