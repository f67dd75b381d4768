"""The Envoy in front: writes its bootstrap, and starts and stops a real Envoy process."""

from fairlead.gateway.bootstrap import Mode, bootstrap, comment, render
from fairlead.gateway.process import EnvoyProcess, envoy_binary, validate

__all__ = ["EnvoyProcess", "Mode", "bootstrap", "comment", "envoy_binary", "render", "validate"]
