"""Where endpoints come from when they are not only in the configuration: sources of endpoint sets, followed together.

A source (`source.py`) is a stream of full sets; `Discovery` (`following.py`) follows all sources, keeps the last set of
each while it cannot be reached, and merges them. What is done with the result is up to `serving.membership`.
"""

from fairlead.discovery.following import Discovery
from fairlead.discovery.source import DiscoveredEndpoint, EndpointSet, Source, SourceStatus, UnusableError

__all__ = ["DiscoveredEndpoint", "Discovery", "EndpointSet", "Source", "SourceStatus", "UnusableError"]
