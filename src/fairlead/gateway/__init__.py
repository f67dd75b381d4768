"""The Envoy in front: writes its bootstrap, and starts and stops a real Envoy process."""

from fairlead.gateway.bootstrap import Mode, bootstrap, comment, render
from fairlead.gateway.endpoint_discovery import EndpointDiscovery, Host
from fairlead.gateway.outdated import outdated_by
from fairlead.gateway.parts import listen_on
from fairlead.gateway.process import EnvoyProcess, envoy_binary, until_advised, validate

__all__ = [
    "EndpointDiscovery",
    "EnvoyProcess",
    "Host",
    "Mode",
    "bootstrap",
    "comment",
    "envoy_binary",
    "listen_on",
    "outdated_by",
    "render",
    "until_advised",
    "validate",
]
