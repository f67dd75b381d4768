"""A reflector: the objects of one kind, kept as the API server has them by a list and the watch that follows it.

    list -> watch -> watch -> ...        each watch goes on where the one before it ended
    any failure -> a pause -> list       410 Gone too, which says that the place to go on from is forgotten

What was last known stays while the API server is away: nothing that fails empties `objects`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import aclosing
from random import Random
from time import monotonic
from typing import Any, Final, Generic, Never, TypeVar

import msgspec
import structlog

from fairlead.discovery.kubernetes.api import Api, ApiError
from fairlead.discovery.kubernetes.objects import Bookmark, ObjectList, Status, WatchEvent

_NOT_FOUND, _GONE = 404, 410
_QUICK_S: Final = 1.0
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 8.0
ABSENT_PAUSE_S: Final = 30.0  # until a kind that the cluster does not have is asked for again
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

log = structlog.get_logger("fairlead")
T = TypeVar("T", bound=msgspec.Struct)


class Reflector(Generic[T]):
    """Objects of `kind` at `path` that `selected` (labelSelector, fieldSelector) leaves, by namespace and name.

    `changed` is called after each change, and `reported` whenever the API server has answered, or has not. One watch
    lasts `lasts_s`. A kind that is `optional` is no trouble where the cluster does not have it: there are none of it.
    """

    def __init__(
        self,
        api: Api,
        path: str,
        kind: type[T],
        selected: Mapping[str, str],
        *,
        changed: Callable[[], None],
        reported: Callable[[Reflector[T]], None],
        lasts_s: int,
        optional: bool = False,
    ) -> None:
        self.path = path
        self.objects: dict[tuple[str, str], T] = {}
        self.is_synced = False  # a list has succeeded
        self.trouble: ApiError | None = None  # why the API server cannot be followed now
        self._api = api
        self._selected = dict(selected)
        self._changed = changed
        self._reported = reported
        self._lasts_s = lasts_s
        self._optional = optional
        self._version = ""
        self._list = msgspec.json.Decoder(ObjectList[msgspec.Raw])
        self._object = msgspec.json.Decoder(kind)
        self._event = msgspec.json.Decoder(WatchEvent)

    async def run(self) -> Never:
        """Follow the API server until cancelled."""
        pauses, was_absent = _Pauses(), False
        while True:
            try:
                await self._relist()
                was_absent = False
                while True:
                    began_s, version = monotonic(), self._version
                    await self._watch()
                    self._in_contact()
                    if self._version != version or monotonic() - began_s > _QUICK_S:
                        pauses.reset()
                    else:  # a server that is about to stop ends watches at once
                        await pauses.next()
            except ApiError as error:
                if error.code == _NOT_FOUND and self._optional:
                    if was_absent or not self.objects:  # an API server that starts may not know its kinds yet
                        self._hold({})
                    was_absent = True
                    self._in_contact()
                    await asyncio.sleep(ABSENT_PAUSE_S)
                elif error.code != _GONE:  # which is no trouble: the list that follows is the answer to it
                    self._failed(error)
            except _UNREADABLE as error:
                self._failed(ApiError(0, f"the API server's answer cannot be read ({error})"))
            await pauses.next()

    async def _relist(self) -> None:
        listed = self._list.decode(await self._api.get(self.path, self._selected))
        found = {}
        for raw in listed.items or ():
            read = self._read(raw)
            if read is not None:
                found[_key(read)] = read
        self._version = listed.metadata.resource_version
        self._in_contact()
        self._hold(found)

    def _hold(self, found: dict[tuple[str, str], T]) -> None:
        if found != self.objects or not self.is_synced:
            self.objects, self.is_synced = found, True
            self._changed()

    async def _watch(self) -> None:
        wanted = {**self._selected, "resourceVersion": self._version}
        async with aclosing(self._api.watch(self.path, wanted, self._lasts_s)) as lines:
            async for line in lines:
                if line:
                    self._on(self._event.decode(line))

    def _on(self, event: WatchEvent) -> None:
        if event.type == "ERROR":
            status = msgspec.json.decode(event.object, type=Status)
            raise ApiError(status.code, status.message or "the watch failed")
        self._in_contact()
        metadata = msgspec.json.decode(event.object, type=Bookmark).metadata
        self._version = metadata.resource_version
        if event.type == "BOOKMARK":
            return
        key = metadata.namespace, metadata.name
        read = None if event.type == "DELETED" else self._read(event.object)
        before = self.objects.get(key)
        if read is None:  # one that cannot be read any more is left out, as a list does
            self.objects.pop(key, None)
        else:
            self.objects[key] = read
        if read != before:
            self._changed()

    def _read(self, raw: msgspec.Raw) -> T | None:
        """None, with a line in the log, for an object of a form that is not the API's: the others still count."""
        try:
            return self._object.decode(raw)
        except (msgspec.ValidationError, UnicodeDecodeError) as error:
            log.warning("an object of the API server cannot be read", path=self.path, reason=str(error))
            return None

    def _in_contact(self) -> None:
        self.trouble = None
        self._reported(self)

    def _failed(self, error: ApiError) -> None:
        self.trouble = error
        self._reported(self)


class _Pauses:
    """Between two attempts: each some twice as long as the one before it."""

    def __init__(self) -> None:
        self._rng = Random()
        self.reset()

    def reset(self) -> None:
        self._next_s = _FIRST_PAUSE_S

    async def next(self) -> None:
        await asyncio.sleep(self._next_s * self._rng.uniform(0.5, 1.0))
        self._next_s = min(2 * self._next_s, _LONGEST_PAUSE_S)


def _key(read: Any) -> tuple[str, str]:
    return read.metadata.namespace, read.metadata.name
