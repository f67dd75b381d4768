"""How to reach the API server, and as whom: a pod's service account, or a kubeconfig.

Tokens, certificates and their authorities rotate while the sidecar runs, so they are read from their files again when
they change, and so is a kubeconfig. Credentials of one that come from another program (`exec`) are not supported.
"""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from fairlead.errors import UserError
from fairlead.files import Stamp, stamp_of

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_KEY: Final = "discovery.kubernetes"


@dataclass(slots=True)
class Access:
    """An API server and its client. `namespace` is the client's own."""

    url: str  # https://host:port, without a path's last slash
    namespace: str = "default"
    token_file: Path | None = None
    token: str = field(default="", repr=False)
    ca_file: Path | None = None
    ca_data: str = field(default="", repr=False)  # PEM
    client_certificate: tuple[bytes, bytes] | None = field(default=None, repr=False)  # PEM: certificate and its key
    verifies: bool = True
    _context: ssl.SSLContext | None = field(default=None, repr=False)
    _seen: Stamp | None = field(default=None, repr=False)  # of the file with the authorities
    _files: Mapping[Path, Stamp | None] = field(default_factory=dict, repr=False)  # that all of this is from
    _read_again: Callable[[], Access] | None = field(default=None, repr=False)

    def renewed(self) -> Access:
        """This, or what a kubeconfig says now that was replaced, or a file that it names. Raises UserError."""
        if self._read_again is None or all(stamp_of(file) == seen for file, seen in self._files.items()):
            return self
        return self._read_again()

    def headers(self) -> dict[str, str]:
        """Of one request: kubelet replaces the token's file well before the token expires. Raises OSError."""
        token = self.token if self.token_file is None else self.token_file.read_text().strip()
        return {"authorization": f"Bearer {token}"} if token else {}

    def tls(self) -> ssl.SSLContext:
        """Of one request. Raises OSError (of which SSLError is one) for files that cannot be read."""
        seen = None if self.ca_file is None else stamp_of(self.ca_file)
        if self._context is None or seen != self._seen:
            self._context, self._seen = self._made(), seen
        return self._context

    def _made(self) -> ssl.SSLContext:
        cafile = None if self.ca_file is None else str(self.ca_file)
        context = ssl.create_default_context(cafile=cafile, cadata=self.ca_data or None)
        # From Python 3.13 on the default refuses authorities without a key identifier, as many clusters have them.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if not self.verifies:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.client_certificate is not None:
            with tempfile.NamedTemporaryFile() as file:  # `ssl` takes certificates from files only
                file.write(b"\n".join(self.client_certificate))
                file.flush()
                context.load_cert_chain(file.name)
        return context


def in_cluster(environment: Mapping[str, str] = os.environ, folder: Path = SERVICE_ACCOUNT) -> Access:
    """As the pod's service account. Raises UserError outside a pod."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (folder / "token").exists():
        missing = "KUBERNETES_SERVICE_HOST is not set" if not host else f"{folder}/token does not exist"
        raise UserError(
            f"{_KEY}: this is not a pod with a service account ({missing}); run in a pod whose "
            "automountServiceAccountToken is true, or write kubeconfig: the path of one"
        )
    try:
        namespace = (folder / "namespace").read_text().strip()
    except OSError:
        namespace = "default"
    shown = f"[{host}]" if ":" in host else host
    return Access(f"https://{shown}:{port}", namespace, token_file=folder / "token", ca_file=folder / "ca.crt")


def from_kubeconfig(path: Path, context: str | None = None) -> Access:
    """As the user of `context`, or of the current one. Raises UserError that says which entry cannot be used."""
    where = f"{_KEY}.kubeconfig: {path}"
    files = {path: stamp_of(path)}
    try:
        document = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise UserError(f"{where} cannot be read ({error.strerror}); write the path of a kubeconfig") from None
    except yaml.YAMLError:
        raise UserError(f"{where} is not YAML; write the path of a kubeconfig") from None
    if not isinstance(document, dict):
        raise UserError(f"{where} is not a kubeconfig; write the path of one")
    chosen = context or document.get("current-context") or ""
    linked = _entry(document, "contexts", "context", chosen, where)
    cluster = _entry(document, "clusters", "cluster", str(linked.get("cluster", "")), where)
    user = _entry(document, "users", "user", str(linked.get("user", "")), where)
    server = cluster.get("server")
    if not isinstance(server, str) or not server.startswith(("https://", "http://")):
        raise UserError(f"{where}: its cluster has no server; write an https URL there")
    if "exec" in user or "auth-provider" in user:
        message = "its user's credentials come from another program, which is not supported"
        raise UserError(f"{where}: {message}; use a token, a tokenFile or a client certificate")
    named = [(cluster, "certificate-authority"), (user, "client-certificate"), (user, "client-key")]
    for file in (path.parent / str(entry[name]) for entry, name in named if entry.get(name)):
        files[file] = stamp_of(file)
    try:
        authority = _data(cluster, "certificate-authority", path)
        certificate, key = _data(user, "client-certificate", path), _data(user, "client-key", path)
    except (OSError, binascii.Error) as error:
        raise UserError(f"{where}: a certificate in it cannot be read ({error}); mend its path or data") from None
    token_file = user.get("tokenFile")
    return Access(
        server.rstrip("/"),
        str(linked.get("namespace") or "default"),
        token_file=path.parent / token_file if isinstance(token_file, str) else None,
        token=str(user.get("token") or ""),
        ca_data=authority.decode("ascii", "replace"),
        client_certificate=(certificate, key) if certificate and key else None,
        verifies=not cluster.get("insecure-skip-tls-verify"),
        _files=files,
        _read_again=lambda: from_kubeconfig(path, chosen),  # whatever its current context is by then
    )


def _entry(document: Mapping[str, Any], group: str, kind: str, name: str, where: str) -> Mapping[str, Any]:
    for entry in document.get(group) or ():
        if isinstance(entry, dict) and entry.get("name") == name and isinstance(entry.get(kind), dict):
            found: Mapping[str, Any] = entry[kind]
            return found
    raise UserError(f'{where} has no {kind} named "{name}"; choose another context, or mend the file')


def _data(entry: Mapping[str, Any], name: str, path: Path) -> bytes:
    """The PEM of `name`, which stands in the file as base64 or as the path of a file of its own; or nothing."""
    inline, file = entry.get(f"{name}-data"), entry.get(name)
    if inline:
        return base64.b64decode(str(inline), validate=True)
    return (path.parent / str(file)).read_bytes() if file else b""
