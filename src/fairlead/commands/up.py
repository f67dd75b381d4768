"""`fairlead up URL...`: Envoy and the sidecar in front of running engines, without a configuration."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.errors import UserError, how_to_install

if TYPE_CHECKING:
    from fairlead.engines.introduction import FoundEngine

_EXAMPLE = "Example: fairlead up http://10.0.0.1:8000 http://10.0.0.2:8000"
_MARK = "# Written by `fairlead up`, which will write it again; copy it before you change it.\n"
_ROUTE = "auto"


def register(app: typer.Typer) -> None:
    app.command("up", epilog=_EXAMPLE)(up)


def up(
    urls: Annotated[list[str], typer.Argument(help="The engines: http://host:port of each.", metavar="URL...")],
    listen: Annotated[str, typer.Option(help="Where to send requests.", metavar="IP:PORT")] = "127.0.0.1:8080",
    grpc: Annotated[str, typer.Option(help="Where Envoy asks the sidecar.", metavar="IP:PORT")] = "127.0.0.1:9002",
    admin: Annotated[str, typer.Option(help="The sidecar's admin pages.", metavar="IP:PORT")] = "127.0.0.1:9003",
    envoy_admin: Annotated[str, typer.Option(help="Envoy's admin page.", metavar="IP:PORT")] = "127.0.0.1:9901",
    config: Annotated[Path, typer.Option(help="The configuration to write.", metavar="FILE")] = Path(
        "fairlead.up.yaml"
    ),
) -> None:
    """Ask each engine for its models, write the configuration, start Envoy and the sidecar, and say where to send."""
    import uvloop
    import yaml

    from fairlead import gateway
    from fairlead.config import parse
    from fairlead.config.agreement import listens_apart
    from fairlead.engines.introduction import discover
    from fairlead.serving.logs import set_up_logs

    addresses = [_address(url) for url in urls]
    for option, address in (("--listen", listen), ("--envoy-admin", envoy_admin)):
        gateway.listen_on(option, address)
    found = uvloop.run(discover(addresses))
    typer.echo(f"page:      http://{admin}/")  # first, as what follows is long in a large pool
    engines = _that_serve_alone(found)
    document = {"listen": {"grpc": grpc, "admin": admin}, "gateway": {"listen": listen}, **_pool(engines)}
    text = _MARK + yaml.safe_dump(document, sort_keys=False)
    listens_apart("--envoy-admin", envoy_admin, parse(text, str(config)))
    _write(config, text)
    for engine in engines:
        typer.echo(f"engine:    {engine.address}: {engine.model} ({engine.engine})")
    set_up_logs("warning")
    uvloop.run(_run(config, envoy_admin))


async def _run(config: Path, envoy_admin: str) -> None:
    """Start the sidecar first, so that Envoy finds it; when either ends, both end."""
    from fairlead import gateway
    from fairlead.config import load
    from fairlead.serving.run import run

    loaded = load(config)
    base = f"http://{loaded.gateway.listen}"
    started = asyncio.Event()
    serving = asyncio.create_task(run(config, started))
    try:
        await _first_of(serving, asyncio.create_task(started.wait()))
        if serving.done():
            return await serving
        async with gateway.EnvoyProcess(gateway.bootstrap(loaded, admin_address=envoy_admin)) as envoy:
            await gateway.until_advised(base)
            typer.echo(f"requests:  {base}/v1/chat/completions (models: {base}/v1/models)")
            typer.echo(f"metrics:   http://{loaded.listen.admin}/metrics; Envoy's admin page: {envoy.admin_url}")
            typer.echo("Ctrl-C ends it.")
            await _first_of(serving, asyncio.create_task(envoy.wait()))
            if not serving.done():
                raise UserError(f"Envoy ended; its log ends:\n{envoy.log_tail()}")
        return await serving
    finally:
        serving.cancel()
        await asyncio.wait([serving])


async def _first_of(lasting: asyncio.Task[None], other: asyncio.Task[Any]) -> None:
    """Wait for either, then cancel `other`."""
    await asyncio.wait((lasting, other), return_when=asyncio.FIRST_COMPLETED)
    other.cancel()


def _that_serve_alone(engines: list[FoundEngine]) -> list[FoundEngine]:
    alone = [engine for engine in engines if engine.info.role == "plain"]
    for engine in engines:
        if engine.info.role != "plain":
            half = "prefill" if engine.info.role == "prefill" else "decoding"
            typer.echo(f"{engine.address}: left out, as it does only the {half} of a request", err=True)
    if not alone:
        raise UserError("none of these servers serves requests by itself; start one without --disaggregation-mode")
    return alone


def _address(url: str) -> str:
    if "@" in url:  # not shown: there may be a password before it
        key = "an engine's API key goes into a file: pool.api_key_file in a fairlead.yaml; see docs/engines.md"
        raise UserError(f"write an engine as http://host:port, without credentials; {key}")
    if url.startswith("https:"):
        needs = (
            "the CA that signed its certificate and the name in it: pool.tls in a fairlead.yaml; see docs/engines.md"
        )
        raise UserError(f"{url}: an https engine needs more than a URL, {needs}")
    address = url.removeprefix("http://").rstrip("/")
    if "/" in address:
        raise UserError(f"{url}: write an engine as http://host:port, without a path")
    return address


def _pool(engines: list[FoundEngine]) -> dict[str, Any]:
    models: dict[str, dict[str, int]] = {}
    for engine in engines:
        lengths = [e.max_model_len for e in engines if e.model == engine.model and e.max_model_len is not None]
        models[engine.model] = {"max_model_len": min(lengths)} if lengths else {}
    endpoints = [_endpoint(engine) for engine in engines]
    pool: dict[str, Any] = {"pool": {"endpoints": endpoints, "models": models}}
    if _ROUTE not in models:
        pool["routes"] = {_ROUTE: list(models)}
    return pool


def _endpoint(engine: FoundEngine) -> dict[str, Any]:
    endpoint: dict[str, Any] = {"address": engine.address, "model": engine.model, "engine": engine.engine}
    kv_events = engine.kv_events()
    if kv_events is None:
        return endpoint
    if find_spec("zmq") is None:
        typer.echo(f"{engine.address}: publishes KV events, which are not followed; {how_to_install('kv-events')}")
        return endpoint
    return endpoint | {"kv_events": kv_events}


def _write(path: Path, text: str) -> None:
    try:
        if path.exists() and not path.read_text(encoding="utf-8").startswith(_MARK):
            raise UserError(f"--config {path}: exists and was not written by `fairlead up`; name another file")
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--config {path}: cannot be written ({error.strerror}); name another file") from None
