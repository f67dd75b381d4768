"""An operator's commands on the admin port: move a session, drain an endpoint, and report progress.

A session moves at its next request, whose body gives its tokens: prompts are not stored just in case of a move.
`release` unbinds sessions that send no request: they compute their context again wherever they go next.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fairlead.core.endpoint import Endpoint
from fairlead.core.facts import session_key
from fairlead.core.moves import may_take, pending_tokens, way_between
from fairlead.core.router import Router

Document = dict[str, Any]

_WAYS: Final[Mapping[str, str]] = {
    "copy": "its KV is copied, then it moves",
    "pull": "it moves at once, and the target reads its KV from the shared store",
    "recompute": "it moves at once, and the target computes its context again",
}


class RefusedError(Exception):
    """A command that cannot be carried out; the text says why and what to do."""


class Commands:
    """Each method raises RefusedError. Sessions are named as in requests, by id and tenant."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._planner = router.planner

    def move(self, session_id: str, tenant: str, to: str, *, dry_run: bool) -> Document:
        """Move one session at its next request."""
        session = session_key(session_id.encode(), tenant.encode())
        source, target = self._host(session), self._endpoint(to)
        if source is target:
            raise RefusedError(f"the session is bound to {to} already")
        if source.model != target.model:
            raise RefusedError(f"{to} serves {target.model}, the session is bound to {source.model}; choose another")
        if not may_take(target, source, 0) or to in self._planner.draining:
            raise RefusedError(
                f"{to} cannot take it: it is unhealthy or draining, or its KV blocks are of another kind"
            )
        if not dry_run and not self._planner.command(session, to):
            raise RefusedError("too many sessions wait to be moved at their next request; try again later")
        return {"from": source.address, "to": to, "way": _WAYS[way_between(source, target)]}

    def session(self, session_id: str, tenant: str) -> Document:
        """Where a session is bound, and whether it waits for its next request to move, or is being copied."""
        session = session_key(session_id.encode(), tenant.encode())
        waits, copies = session in self._planner.commands, self._planner.copies(session)
        return {"endpoint": self._host(session).address, "waits": waits, "copies": copies}

    def cancel(self, session_id: str, tenant: str) -> Document:
        """Cancel the move of one session, if it still waits."""
        session = session_key(session_id.encode(), tenant.encode())
        return {"cancelled": self._planner.commands.pop(session, None) is not None}

    def drain(self, address: str, *, dry_run: bool) -> Document:
        """Send no new session to an endpoint, and move its sessions away at their next requests."""
        source = self._endpoint(address)
        targets = [
            e for e in self._router.pool.endpoints if may_take(e, source, 0) and e.address not in self._planner.draining
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
        """Unbind the sessions that are still bound to a draining endpoint."""
        self._endpoint(address)
        if address not in self._planner.draining:
            raise RefusedError(f"{address} is not draining; drain it first")
        released = self._router.sessions.by_endpoint().get(address, 0)
        self._router.sessions.forget_endpoint(address)
        return self.drained(address) | {"released": released}

    def drained(self, address: str) -> Document:
        """How far an endpoint is drained: with no session and no request in flight it can be stopped."""
        endpoint = self._endpoint(address)
        return {
            "endpoint": address,
            "draining": address in self._planner.draining,
            "sessions": self._router.sessions.by_endpoint().get(address, 0),
            "inflight_requests": endpoint.load.inflight_requests,
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
            raise RefusedError(f"{address} is not an endpoint of the pool; known addresses: {known}")
        return endpoint
