"""TLS of the edge: certificate files that are read again when they change, clients' certificates, or one made here."""

from __future__ import annotations

import ssl
import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from fairlead.errors import UserError, how_to_install
from fairlead.files import Stamp, stamp_of

_SELF_SIGNED_FOR: Final = timedelta(days=3650)


@dataclass(slots=True)
class TlsFiles:
    """`context` is the one in force. Without files the certificate is made when it is loaded, and signs itself."""

    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    context: ssl.SSLContext | None = None
    reloads_refused: int = 0
    last_refusal: str = ""
    _seen: tuple[Stamp, ...] | None = field(default=None, repr=False)

    def load(self) -> None:
        """Raises UserError for files that cannot be used."""
        self._seen = self._stamp()
        self.context = self._made()

    def have_changed(self) -> bool:
        """Look at the files; whether `context` is a new one. Files that cannot be used leave the old one in force."""
        stamp = self._stamp()
        if stamp is None or stamp == self._seen:
            return False
        self._seen = stamp
        try:
            self.context = self._made()
        except UserError as error:
            self.reloads_refused += 1
            self.last_refusal = str(error)
            return False
        return True

    def _made(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["h2"])
        if self.certificate is None or self.key is None:
            _load_self_signed(context)
        else:
            try:
                context.load_cert_chain(self.certificate, self.key, password=_no_password)
            except (OSError, ssl.SSLError, ValueError) as error:
                raise UserError(
                    f"listen.tls: {self.certificate} and {self.key} cannot be used ({_reason(error)}); write the paths "
                    "of a certificate in PEM and of its key, without a password"
                ) from None
        if self.client_ca is not None:
            try:
                context.load_verify_locations(self.client_ca)
            except (OSError, ssl.SSLError) as error:
                message = f"listen.tls.client_ca: {self.client_ca} cannot be used ({_reason(error)})"
                raise UserError(f"{message}; write the path of certificates in PEM") from None
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _stamp(self) -> tuple[Stamp, ...] | None:
        """None while one of the files is being replaced."""
        stamps = [stamp_of(path) for path in (self.certificate, self.key, self.client_ca) if path is not None]
        found = tuple(stamp for stamp in stamps if stamp is not None)
        return found if len(found) == len(stamps) else None


def _no_password() -> str:
    raise ValueError("the key is encrypted")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).lower().replace("_", " ")
    return getattr(error, "strerror", None) or str(error)


def _load_self_signed(context: ssl.SSLContext) -> None:
    """Raises UserError without the library that makes certificates."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        message = f"needs cryptography, which is not installed; {how_to_install('tls')}"
        raise UserError(f"listen.tls.self_signed: {message}") from None
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "fairlead")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # a clock behind ours
        .not_valid_after(now + _SELF_SIGNED_FOR)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.DNSName("fairlead")]), False)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM) + key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with tempfile.NamedTemporaryFile() as file:  # `ssl` takes certificates from files only
        file.write(pem)
        file.flush()
        context.load_cert_chain(file.name)
