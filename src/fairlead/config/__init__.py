"""The one validated configuration, as described in `docs/configuration.md`.

`load` reads YAML and either returns a frozen `Config` or raises `ConfigError`, whose text names the file, the line, the
key's path and what to change. A section, or a few that belong together, is one module; it refuses the mistakes within
it, `agreement` those between sections. Nothing here opens a socket or reads a file other than the configuration itself.
"""

from fairlead.config.admission import Admission, Priority
from fairlead.config.discovery import Discovery
from fairlead.config.document import Config
from fairlead.config.errors import ConfigError
from fairlead.config.gateway import Gateway
from fairlead.config.listen import Listen
from fairlead.config.observation import Decisions, Observe, Tracing
from fairlead.config.policy import Migration, PolicyConfig, Tuner
from fairlead.config.pool import EndpointConfig, KvEvents, KvTransfer, ModelConfig, Pool
from fairlead.config.reading import load, parse, parse_as
from fairlead.config.requests import Prefixes, Sessions, Tenants
from fairlead.config.routes import ANY_ROUTE, Reuse, Route

__all__ = [
    "ANY_ROUTE",
    "Admission",
    "Config",
    "ConfigError",
    "Decisions",
    "Discovery",
    "EndpointConfig",
    "Gateway",
    "KvEvents",
    "KvTransfer",
    "Listen",
    "Migration",
    "ModelConfig",
    "Observe",
    "PolicyConfig",
    "Pool",
    "Prefixes",
    "Priority",
    "Reuse",
    "Route",
    "Sessions",
    "Tenants",
    "Tracing",
    "Tuner",
    "load",
    "parse",
    "parse_as",
]
