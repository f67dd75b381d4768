"""Checks what `serve` would only notice at its start: files, libraries and addresses of a valid configuration.

Nothing is written and no port stays open, so a sidecar may run at the same time.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from fairlead import decision_log, gateway, redis, tracing
from fairlead.addresses import host_and_port
from fairlead.admin.token import AdminToken
from fairlead.cascade.load_judges import load_functions
from fairlead.config import Config, ConfigError
from fairlead.core.pool import Pool
from fairlead.discovery.kubernetes.source import access_of
from fairlead.engines import kv_following
from fairlead.errors import UserError
from fairlead.extproc.client_keys import ClientKeys
from fairlead.redis.password import StorePassword
from fairlead.serving.access import check_access
from fairlead.serving.pool import make_pool, resolve


def preflight(config: Config, folder: Path) -> Pool:
    """The pool that would be served; paths are relative to `folder`. Raises ConfigError with all that is wrong."""
    mistakes = []
    for check in _checks(config, folder):
        try:
            check()
        except UserError as error:
            mistakes.append(str(config.located(error)))
    try:
        pool = make_pool(config, folder)
    except UserError as error:
        mistakes.insert(0, str(error))
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return pool


def _checks(config: Config, folder: Path) -> Iterator[Callable[[], object]]:
    for name, route in config.cascades().items():
        yield partial(load_functions, {name: route}, folder)
        if route.sample is not None:
            path = (folder / route.sample.file).parent
            yield partial(_writable, path, f"routes.{name}.sample.file", made=False)
    yield partial(kv_following.require_library, config)
    yield partial(check_access, config)
    if config.clients is not None:
        yield partial(ClientKeys().use, folder / config.clients.keys)
    yield AdminToken(config.listen.admin_token_path(folder)).check
    if config.sessions.store != "memory":
        yield redis.require_library
        yield StorePassword(config.sessions.store_password_path(folder)).read
    cluster = config.discovery.kubernetes
    if cluster is not None and cluster.kubeconfig is not None:  # a pod's own credentials are known in the pod alone
        yield partial(access_of, cluster, folder)
    if config.decisions is not None:
        yield decision_log.require_library
        key, path = decision_log.files_of(config.decisions, folder)
        yield partial(_writable, path, key, made=True)
    if config.observe.state is not None:
        yield partial(_replaceable, folder / config.observe.state, "observe.state")
    if config.gateway.remember is not None:
        yield partial(_writable, Path(config.gateway.remember), "gateway.remember", made=True)
    if config.tracing is not None:
        yield tracing.require_library
    tls = config.listen.tls_files(folder)
    if tls is not None:
        yield tls.load
    yield partial(_is_ours, config.listen.grpc, "listen.grpc")
    yield partial(_is_ours, config.listen.admin, "listen.admin")
    yield partial(gateway.bootstrap, config)


def _writable(folder: Path, key: str, *, made: bool) -> None:
    """`made`: `serve` creates missing folders."""
    there = folder
    while made and not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise UserError(f"{key}: {there} is not a folder; create one there, or change the path")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"{key}: {there} may not be written by this user; change its rights, or the path")


def _replaceable(file: Path, key: str) -> None:
    """Whether `serve` can write this file; it creates missing folders."""
    if file.is_dir():
        raise UserError(f"{key}: {file} is a folder; write the path of a file")
    _writable(file.parent, key, made=True)


def _is_ours(address: str, key: str) -> None:
    """Check that this machine can listen at `address`, even if the port is in use now."""
    if address.startswith("unix:"):
        _writable(Path(address.removeprefix("unix:")).parent, key, made=False)
        return
    host, port = host_and_port(resolve(address, key))
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                reason = f'"{address}" cannot be listened at on this machine ({error.strerror})'
                raise UserError(f"{key}: {reason}; write 127.0.0.1:{port}, or 0.0.0.0:{port} for all") from None
