"""What an operator may order on the admin port: a session elsewhere, an endpoint drained, and how far that has come.

A session moves at its next request, whose body tells its tokens: prompts are not kept for the case that somebody wants
to move them. `release` gives up on those that do not come: they are bound to nothing, and compute their context again
wherever they come next.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fairlead.core.facts import session_key
from fairlead.core.moves import may_host, pending_tokens, way_between
from fairlead.core.pool import Endpoint
from fairlead.core.router import Router

Document = dict[str, Any]

_WAYS: Final[Mapping[str, str]] = {
    "copy": "its KV is copied, then it moves",
    "pull": "it moves at once, and the target reads its KV from the shared store",
    "recompute": "it moves at once, and the target computes its context again",
}


class RefusedError(Exception):
    """An order that cannot be followed; the text says why and what to do."""


class Orders:
    """Each method raises RefusedError. Sessions are named as in requests, by id and tenant."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._planner = router.planner

    def move(self, session_id: str, tenant: str, to: str, *, dry_run: bool) -> Document:
        """Move one session at its next request."""
        session = session_key(session_id.encode(), tenant.encode())
        source, target = self._host(session), self._endpoint(to)
        if source is target:
            raise RefusedError(f"the session lives at {to} already")
        if source.model != target.model:
            raise RefusedError(f"{to} serves {target.model}, the session lives with {source.model}; choose another")
        if not may_host(target, source, 0) or to in self._planner.draining:
            raise RefusedError(
                f"{to} cannot take it: it is unhealthy or draining, or its KV blocks are of another kind"
            )
        if not dry_run and not self._planner.order(session, to):
            raise RefusedError("too many sessions wait to be moved at their next request; try again later")
        return {"from": source.address, "to": to, "way": _WAYS[way_between(source, target)]}

    def session(self, session_id: str, tenant: str) -> Document:
        """Where a session lives, and whether it waits for its next request to move, or is being copied."""
        session = session_key(session_id.encode(), tenant.encode())
        waits, copies = session in self._planner.orders, self._planner.copies(session)
        return {"endpoint": self._host(session).address, "waits": waits, "copies": copies}

    def cancel(self, session_id: str, tenant: str) -> Document:
        """Take back the order for one session, if it still waits."""
        session = session_key(session_id.encode(), tenant.encode())
        return {"cancelled": self._planner.orders.pop(session, None) is not None}

    def drain(self, address: str, *, dry_run: bool) -> Document:
        """Send no new session to an endpoint, and the sessions that live there away at their next request."""
        source = self._endpoint(address)
        targets = [
            e for e in self._router.pool.endpoints if may_host(e, source, 0) and e.address not in self._planner.draining
        ]
        if not targets:
            raise RefusedError(f"no other healthy endpoint serves {source.model}; its sessions have nowhere to go")
        if not dry_run:
            self._planner.draining.add(address)
        targets.sort(key=pending_tokens)
        ways = sorted({_WAYS[way_between(source, target)] for target in targets})
        return self.drained(address) | {"targets": [target.address for target in targets], "ways": ways}

    def undrain(self, address: str) -> Document:
        """The endpoint takes sessions again."""
        self._endpoint(address)
        self._planner.draining.discard(address)
        return self.drained(address)

    def release(self, address: str) -> Document:
        """The sessions that still live at a draining endpoint are bound to nothing from now on."""
        self._endpoint(address)
        if address not in self._planner.draining:
            raise RefusedError(f"{address} is not draining; drain it first")
        released = self._router.sessions.by_host().get(address, 0)
        self._router.sessions.forget_host(address)
        return self.drained(address) | {"released": released}

    def drained(self, address: str) -> Document:
        """How far an endpoint is drained: with no session and no request in flight it can be stopped."""
        endpoint = self._endpoint(address)
        return {
            "endpoint": address,
            "draining": address in self._planner.draining,
            "sessions": self._router.sessions.by_host().get(address, 0),
            "inflight_requests": endpoint.inflight_requests + endpoint.others_inflight_requests,
        }

    def _host(self, session: bytes) -> Endpoint:
        address = self._router.sessions.address_of(session)
        endpoint = self._router.pool.by_address.get(address or "")
        if endpoint is None:
            raise RefusedError("this sidecar knows no such session; with a tenants header, name its tenant too")
        return endpoint

    def _endpoint(self, address: str) -> Endpoint:
        endpoint = self._router.pool.by_address.get(address)
        if endpoint is None:
            known = ", ".join(sorted(self._router.pool.by_address)[:8])
            raise RefusedError(f"{address} is no endpoint of the pool; known are: {known}")
        return endpoint
