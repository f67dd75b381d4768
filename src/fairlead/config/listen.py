"""The `listen` section: where the sidecar listens."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fairlead.addresses import Address, AskedHost, GrpcAddress
from fairlead.config.errors import InvalidAtError
from fairlead.edge.tls import TlsFiles
from fairlead.section import Section

_AskedHosts = Annotated[tuple[AskedHost, ...], Field(strict=False)]


class Tls(Section):
    """TLS of `listen.grpc`. Paths are relative to the configuration; the files are read again when they change."""

    certificate: Annotated[str, Field(min_length=1)] | None = None  # PEM, with the chain to its issuer
    key: Annotated[str, Field(min_length=1)] | None = None  # PEM, without a password
    client_ca: Annotated[str, Field(min_length=1)] | None = None  # PEM; clients must show a certificate that it signed
    self_signed: bool = False  # make a certificate at start: for gateways that require TLS but verify nothing

    @model_validator(mode="after")
    def _has_one_certificate(self) -> Self:
        if self.self_signed and (self.certificate or self.key):
            raise InvalidAtError(("self_signed",), "remove this, or the certificate and its key: one of them is used")
        if not self.self_signed and not (self.certificate and self.key):
            missing = "key" if self.certificate else "certificate"
            message = "is required: the path of a file in PEM; or write self_signed: true"
            raise InvalidAtError((missing,), message)
        return self

    def files(self, folder: Path) -> TlsFiles:
        certificate, key, client_ca = (
            None if name is None else folder / name for name in (self.certificate, self.key, self.client_ca)
        )
        return TlsFiles(certificate, key, client_ca)


class Listen(Section):
    """Where the sidecar listens. The admin port answers anyone who reaches it, so it stays on loopback by default."""

    grpc: GrpcAddress = "127.0.0.1:9002"
    server: Literal["native", "grpcio"] = "native"  # the gRPC implementation
    tls: Tls | None = None
    admin: Address = "127.0.0.1:9003"
    admin_hosts: _AskedHosts = ()  # host names of the admin port, besides IP addresses and localhost
    admin_token_file: Annotated[str, Field(min_length=1)] | None = (
        None  # one line; who sends it may drain, move sessions
    )
    # and freeze the tuner there; relative to this file; without it the admin port only reads
    drain_s: Annotated[float, Field(ge=0, le=3600)] = 30.0  # how long running streams may finish after SIGTERM

    @model_validator(mode="after")
    def _tls_is_of_the_native_server(self) -> Self:
        if self.tls is not None and self.server != "native":
            raise InvalidAtError(("tls",), "only the native server has TLS; remove this, or server: grpcio")
        return self

    def admin_token_path(self, folder: Path) -> Path | None:
        return None if self.admin_token_file is None else folder / self.admin_token_file

    def tls_files(self, folder: Path) -> TlsFiles | None:
        return None if self.tls is None else self.tls.files(folder)
