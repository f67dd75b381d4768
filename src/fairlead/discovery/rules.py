"""What a cluster says about the requests of a pool, apart from its endpoints: priorities and rewrites of models."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from fairlead.core.splits import NO_REWRITES, Rewrites


class RequestRules(msgspec.Struct, frozen=True):
    """Full sets, as those of endpoints."""

    priorities: Mapping[str, int] = {}  # by the objective that a request names; higher goes first
    rewrites: Rewrites = NO_REWRITES


NO_RULES = RequestRules()
