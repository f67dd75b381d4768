"""What stands in front of engines: the sidecar and a real Envoy, as `fairlead up` would start them.

The policy is changed as an operator would: the configuration is written again, and the sidecar takes it up by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Never, Self

import httpx
import yaml

from fairlead.config import parse
from fairlead.demo.children import Child, ChildError, free_ports, while_running
from fairlead.demo.learning import Learnt
from fairlead.demo.traffic import ROUTE
from fairlead.engines.discovery import FoundEngine
from fairlead.gateway.bootstrap import bootstrap
from fairlead.gateway.process import EnvoyProcess, until_advised

_TAKEN_UP_WITHIN_S: Final = 15.0
_POLL_S: Final = 0.05


class Front:
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
        self._document = own | dict(sections or {})
        self._write()
        config = parse(self.config_path.read_text(encoding="utf-8"), str(self.config_path))
        self._envoy = EnvoyProcess(bootstrap(config, admin_address=envoy_admin))
        serve = ["serve", "--config", str(self.config_path)]
        self._sidecar = Child("the sidecar", serve, folder / "sidecar.log")
        self._stack = AsyncExitStack()

    async def use(self, policy: str) -> None:
        """Change the policy, and wait until the sidecar decides by it."""
        self._document["policy"] = {"name": policy}
        self._write()
        await while_running(self._until_in_force(policy), self.ended())

    async def ended(self) -> Never:
        """Raise when the sidecar or Envoy ends, which neither does by itself."""
        await while_running(self._sidecar.ended(), self._envoy_ended())

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._sidecar)
            await self._sidecar.until_ready(f"{self.admin_url}/readyz")
            await stack.enter_async_context(self._envoy)
            await while_running(until_advised(self.url), self.ended())
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def _envoy_ended(self) -> Never:
        status = await self._envoy.wait()
        raise ChildError(f"Envoy ended with status {status}; its last words:\n{self._envoy.log_tail()}")

    async def _until_in_force(self, policy: str) -> None:
        try:
            async with asyncio.timeout(_TAKEN_UP_WITHIN_S), httpx.AsyncClient(trust_env=False) as client:
                while True:
                    in_force = (await client.get(f"{self.admin_url}/debug/config")).json()
                    if in_force["policy"]["name"] == policy:
                        return
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise ChildError(f"the sidecar did not take up policy {policy} within {_TAKEN_UP_WITHIN_S:g} s") from None

    def _write(self) -> None:
        """All at once: the sidecar must not read half a file."""
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
