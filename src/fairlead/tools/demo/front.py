"""The front of the engines: the sidecar and a real Envoy, as `fairlead up` would start them.

The policy is changed as an operator would do it: the configuration is rewritten, and the sidecar reloads it by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, Never

import httpx
import yaml

from fairlead.config import parse
from fairlead.engines.introduction import FoundEngine
from fairlead.gateway.bootstrap import bootstrap
from fairlead.gateway.process import EnvoyProcess, until_advised
from fairlead.processes import Assembly, Child, ChildError, free_ports, python_module
from fairlead.tasks import while_running
from fairlead.tools.demo.learning import Learnt
from fairlead.tools.demo.traffic import ROUTE

_TAKEN_UP_WITHIN_S: Final = 15.0
_POLL_S: Final = 0.05


class Front(Assembly):
    """`async with Front(...) as front:` serves the pool at `front.url`.

    `kv_events` holds, by engine address, where those engines that publish KV events do so; `sections` are further ones
    of the configuration.
    """

    def __init__(
        self,
        served: Sequence[FoundEngine],
        learnt: Learnt,
        policy: str,
        folder: Path,
        kv_events: Mapping[str, Mapping[str, str]] | None = None,
        sections: Mapping[str, Any] | None = None,
    ) -> None:
        grpc, admin, gateway, envoy_admin = (f"127.0.0.1:{port}" for port in free_ports(4))
        self.url = f"http://{gateway}"
        self.admin_url = f"http://{admin}"
        self.envoy_admin_url = f"http://{envoy_admin}"
        self.config_path = folder / "fairlead.yaml"
        own = _document(served, learnt, policy, kv_events or {}, grpc=grpc, admin=admin, gateway=gateway)
        more = dict(sections or {})
        with_addresses = {name: own[name] | more.get(name, {}) for name in ("listen", "gateway")}
        self._document = own | more | with_addresses
        self._write()
        config = parse(self.config_path.read_text(encoding="utf-8"), str(self.config_path))
        self._envoy = EnvoyProcess(bootstrap(config, admin_address=envoy_admin))
        serve = python_module("fairlead", "serve", "--config", str(self.config_path))
        self._sidecar = Child("the sidecar", serve, folder / "sidecar.log")

    async def use(self, policy: str) -> None:
        """Change the policy, and wait until the sidecar decides by it."""
        self._document["policy"] = {"name": policy}
        self._write()
        await while_running(self._until_in_force(policy), self.ended())

    async def ended(self) -> Never:
        """Raise when the sidecar or Envoy ends, which neither does by itself."""
        await while_running(self._sidecar.ended(), self._envoy.ended())

    async def _start(self, stack: AsyncExitStack) -> None:
        await stack.enter_async_context(self._sidecar)
        await self._sidecar.until_ready(f"{self.admin_url}/readyz")
        await stack.enter_async_context(self._envoy)
        await while_running(until_advised(self.url), self.ended())

    async def _until_in_force(self, policy: str) -> None:
        try:
            async with asyncio.timeout(_TAKEN_UP_WITHIN_S), httpx.AsyncClient(trust_env=False) as client:
                while True:
                    in_force = (await client.get(f"{self.admin_url}/debug/config")).json()
                    if in_force["policy"]["name"] == policy:
                        return
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise ChildError(f"the sidecar did not switch to policy {policy} within {_TAKEN_UP_WITHIN_S:g} s") from None

    def _write(self) -> None:
        """Written atomically: the sidecar must not read half a file."""
        fresh = self.config_path.with_suffix(".new")
        fresh.write_text(yaml.safe_dump(self._document, sort_keys=False), encoding="utf-8")
        fresh.replace(self.config_path)


def _document(
    served: Sequence[FoundEngine],
    learnt: Learnt,
    policy: str,
    kv_events: Mapping[str, Mapping[str, str]],
    *,
    grpc: str,
    admin: str,
    gateway: str,
) -> dict[str, Any]:
    models = {
        model: {"prefill_ms_per_token": ms_per_token}
        | ({"capability": learnt.capability.name} if learnt.capability is not None else {})
        for model, ms_per_token in learnt.prefill_ms_per_token.items()
    }
    return {
        "listen": {"grpc": grpc, "admin": admin},
        "gateway": {"listen": gateway},
        "pool": {
            "endpoints": [
                {"address": e.address, "model": e.model, "engine": e.engine}
                | ({"kv_events": dict(kv_events[e.address])} if e.address in kv_events else {})
                for e in served
            ],
            "models": models,
        },
        "routes": {ROUTE: list(models)},
        "policy": {"name": policy},
    }
