"""How an engine is reached where that is not plain HTTP: TLS, and a key in its requests. Names of files, no secrets.

What is read from the files is in `engines.credentials`; what Envoy is told of them in `gateway.reached`.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, NamedTuple


class Access(NamedTuple):
    """Empty strings: without. Paths are absolute, as Envoy reads the same files."""

    ca: str = ""  # PEM: who may sign the engine's certificate
    server_name: str = ""  # that its certificate must have
    api_key_file: str = ""

    @property
    def tls_name(self) -> str:
        """By which Envoy's configuration names the TLS setting; empty without TLS."""
        return _named("tls", self.ca, self.server_name) if self.ca else ""

    @property
    def key_name(self) -> str:
        """By which Envoy's configuration names the key; empty without one."""
        return _named("key", self.api_key_file) if self.api_key_file else ""


PLAIN: Final = Access()


def _named(*parts: str) -> str:
    digest = blake2b("\0".join(parts).encode(), digest_size=6).hexdigest()
    return f"{parts[0]}-{digest}"
