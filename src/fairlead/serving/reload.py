"""Reading the configuration again: on SIGHUP, and when its file changes. An invalid one changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Final

import structlog

from fairlead import gateway
from fairlead.config import Config, load
from fairlead.errors import UserError
from fairlead.extproc.services import Services
from fairlead.files import Stamp, stamp_of
from fairlead.serving.in_force import InForce
from fairlead.serving.preflight import preflight

_WATCH_S: Final = 0.5
# A reload cannot change these; the Helm chart restarts pods for them.
FIXED_SECTIONS: Final = ("listen", "sessions", "prefixes", "tenants", "decisions", "tracing")

log = structlog.get_logger("fairlead")


class Reloading:
    """Reads the file at `path` again for `services`; `seen` is its stamp from before it was first read."""

    def __init__(self, path: Path, seen: Stamp | None, services: Services, in_force: InForce) -> None:
        self._path = path
        self._seen = seen
        self._services = services
        self._in_force = in_force

    async def reload(self) -> None:
        """Put the file's present content in force, or keep the old one and say why."""
        try:
            written, now = await asyncio.to_thread(load, self._path), self._services.config
            config, fixed = _with_what_is_fixed(written, now)
            await asyncio.to_thread(preflight, config, self._path.parent)
            outdated = await asyncio.to_thread(_outdated, now, written)
            await self._in_force.apply(config)
        except UserError as error:
            self._services.recorder.reloads_refused += 1
            log.error("the new configuration is refused, the old one stays", reason=str(error))
            return
        except Exception:  # a bug of ours must not end the sidecar
            self._services.recorder.reloads_refused += 1
            log.exception(
                "an internal error while the configuration was reloaded; restart to be sure of what is in force"
            )
            return
        if fixed:
            log.warning("these sections need a restart to change", sections=fixed)
        if outdated:
            log.warning(
                "Envoy keeps the bootstrap of an older configuration: write it again with `fairlead envoy` and restart "
                "Envoy; until then a new route is a 404 whenever the sidecar is away",
                sections=outdated,
            )
        log.info("configuration reloaded", policy=config.policy.name, endpoints=len(config.pool.endpoints))

    async def watch(self, wanted: asyncio.Event) -> None:
        """Reload whenever the file changes and when `wanted` is set. Runs until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_WATCH_S):  # not wait_for: Python 3.11's may swallow a cancellation
                    await wanted.wait()
            stamp = stamp_of(self._path) or self._seen
            if wanted.is_set() or stamp != self._seen:
                wanted.clear()
                self._seen = stamp
                await self.reload()


def _with_what_is_fixed(new: Config, now: Config) -> tuple[Config, list[str]]:
    """`new` with the sections that need a restart taken from `now`, and the names of those that differ."""
    fixed = {name: getattr(now, name) for name in FIXED_SECTIONS if getattr(now, name) != getattr(new, name)}
    names = list(fixed)
    if new.gateway.max_body_bytes != now.gateway.max_body_bytes:
        fixed["gateway"] = new.gateway.model_copy(update={"max_body_bytes": now.gateway.max_body_bytes})
        names.append("gateway.max_body_bytes")
    return new.model_copy(update=fixed), names


def _outdated(old: Config, new: Config) -> list[str]:
    """Sections of `new` that an Envoy with the bootstrap of `old` does not know."""
    try:
        return gateway.outdated_by(old, new)
    except UserError as error:
        raise new.located(error) from None
