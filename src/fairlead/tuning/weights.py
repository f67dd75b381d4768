"""Which weights of which policy may be tuned, and within what bounds."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from fairlead.core.policy import Policy

Weights = Mapping[str, float]
Box = Mapping[str, tuple[float, float]]  # the least and the greatest value of each weight, both above 0

# The queue weight has a floor: at 0 the time to the first token looks best while everything goes to the nearest
# replica (GORGO, section 6). The RTT weight has a cap, so that distance alone never decides. `fairlead` computes in
# milliseconds: 1 is the physical weight. `gorgo` adds milliseconds to tokens, and a token takes some 0.06 to 0.13 ms,
# so its physical RTT weight of 7 to 16 must be inside; in the published box, up to 2, it is not.
BOXES: Final[Mapping[str, Box]] = MappingProxyType(
    {
        "fairlead": {"rtt_weight": (0.25, 4.0), "queue_weight": (0.25, 4.0)},
        "gorgo": {"rtt_weight": (0.25, 32.0), "queue_weight": (0.1, 2.0)},
    }
)


def weights_of(policy: Policy, box: Box) -> Weights:
    """The weights of `policy` that `box` names."""
    return {name: getattr(policy, name) for name in box}


def with_weights(policy: Policy, weights: Weights) -> Policy:
    """`policy` with other weights; its further parameters stay."""
    assert isinstance(policy, msgspec.Struct)  # as every policy of the registry is
    return msgspec.structs.replace(policy, **weights)
