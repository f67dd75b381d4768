"""Routing policies, one a file, chosen by name in the configuration and in the simulator."""

from fairlead.policies import (
    fairlead,
    laar,
    least_request,
    load_aware_exclude_tried,
    power_of_two,
    random,
    round_robin,
    session_affinity,
)
from fairlead.policies.registry import build_policy, policy_names

__all__ = [
    "build_policy",
    "fairlead",
    "laar",
    "least_request",
    "load_aware_exclude_tried",
    "policy_names",
    "power_of_two",
    "random",
    "round_robin",
    "session_affinity",
]
