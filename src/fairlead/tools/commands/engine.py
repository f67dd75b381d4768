"""`fairlead engine`: one simulated vLLM or SGLang engine, for tests, demos and trying a configuration without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fairlead.core.capability import Capability
    from fairlead.tools.simulate.server import EngineOptions

_EXAMPLE = "Example: fairlead engine --listen 127.0.0.1:8001 --model granite-3.1-2b --decode-ms-per-token 8"


def register(app: typer.Typer) -> None:
    app.command("engine", epilog=_EXAMPLE)(engine)


def engine(
    model: Annotated[str, typer.Option(help="The model's name.", metavar="NAME")],
    listen: Annotated[
        str, typer.Option(help="Where to listen; port 0 takes any free one.", metavar="HOST:PORT")
    ] = "127.0.0.1:8001",
    kind: Annotated[str, typer.Option(help="The engine to imitate: vllm or sglang.")] = "vllm",
    accuracy: Annotated[
        Path | None,
        typer.Option(help="A capability file: how often the model is right (default: always).", metavar="FILE"),
    ] = None,
    prefill_ms_per_token: Annotated[float, typer.Option(help="Prefill time of an uncached prompt token.")] = 0.1,
    decode_ms_per_token: Annotated[float, typer.Option(help="Time of a decoding step, whatever the batch.")] = 12.0,
    request_overhead_ms: Annotated[
        float, typer.Option(help="Time that the server spends on a request before the engine gets it.")
    ] = 0.0,
    kv_tokens: Annotated[int, typer.Option(help="Size of the KV cache.")] = 524288,
    max_model_len: Annotated[int, typer.Option(help="Most tokens of a prompt with its answer.")] = 131072,
    time_scale: Annotated[float, typer.Option(help="How many times faster than real time it runs.")] = 1.0,
    seed: Annotated[int, typer.Option(help="For answers above temperature 0.")] = 0,
    bootstrap_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port of a Mooncake bootstrap server, for copies of its KV."),
    ] = None,
) -> None:
    """Run a simulated engine: OpenAI's, Anthropic's and SGLang's APIs, real batching and caching, invented answers.

    It answers key-value questions (pairs of UUIDs, and a key at the end) and fills everything else with words. SIGTERM
    ends it. Faults can be set while it runs: POST /fault {"kind": "error", "count": 1}.
    """
    import math

    import uvloop

    from fairlead.core.capability import NEUTRAL
    from fairlead.errors import UserError
    from fairlead.tools.simulate.engine_metrics import PAGES
    from fairlead.tools.simulate.kv_exchange import KvOptions
    from fairlead.tools.simulate.parameters import EngineParameters
    from fairlead.tools.simulate.server import EngineOptions

    if kind not in PAGES:
        raise UserError(f'--kind: no "{kind}" can be simulated; write one of: {", ".join(PAGES)}')
    if not (math.isfinite(time_scale) and time_scale > 0):
        raise UserError(f"--time-scale {time_scale:g}: write a number above 0, for example 10")
    host, port = _host_and_port(listen)
    try:
        parameters = EngineParameters(
            prefill_ms_per_token=prefill_ms_per_token,
            decode_ms_per_step=decode_ms_per_token,
            request_overhead_ms=request_overhead_ms,
            num_blocks=kv_tokens // EngineParameters().block_size,
            max_model_len=max_model_len,
        )
    except ValueError as error:
        raise UserError(f"an engine cannot run like this: {error}") from None
    options = EngineOptions(
        model=model,
        kind=kind,
        host=host,
        port=port,
        parameters=parameters,
        capability=NEUTRAL if accuracy is None else _capability(accuracy, model),
        time_scale=time_scale,
        seed=seed,
        kv=None if bootstrap_port is None else KvOptions("mooncake", bootstrap_port),
    )
    try:
        uvloop.run(_run(options))
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"--listen {listen}: cannot listen there ({reason}); choose another port") from None


async def _run(options: EngineOptions) -> None:
    import asyncio
    import signal

    from fairlead.tools.simulate.server import running_engine

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with running_engine(options) as running:
        exchange = running.exchange
        bootstrap = f", its bootstrap server on {exchange.address}," if exchange is not None else ""
        typer.echo(f"simulated {options.kind} engine of {options.model}{bootstrap} listens on http://{running.address}")
        await stop.wait()


def _host_and_port(listen: str) -> tuple[str, int]:
    from fairlead.addresses import host_and_port
    from fairlead.errors import UserError

    any_port = listen.endswith(":0")
    try:
        host, port = host_and_port(f"{listen[:-1]}1" if any_port else listen)
    except ValueError as error:
        raise UserError(f"--listen: {error}") from None
    return host, 0 if any_port else port


def _capability(path: Path, model: str) -> Capability:
    from fairlead.core.capability import parse_capability_file
    from fairlead.errors import UserError

    try:
        return parse_capability_file(path.read_bytes()).of_model(model)
    except OSError as error:
        raise UserError(f"--accuracy {path}: cannot be read ({error.strerror}); pass a capability file") from None
    except ValueError as error:
        raise UserError(f"--accuracy {path}: {error}") from None
