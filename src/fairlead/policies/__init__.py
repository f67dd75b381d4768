"""Routing policies, one a file, chosen by name in the configuration and in the simulator."""

from fairlead.policies.registry import Policy, build_policy, policy_names

__all__ = ["Policy", "build_policy", "policy_names"]
