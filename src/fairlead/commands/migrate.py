"""`fairlead migrate`: move a session to another endpoint, or drain an endpoint so that it can be stopped."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

if TYPE_CHECKING:
    import httpx

_EXAMPLE = "Example: fairlead migrate --drain 127.0.0.1:8001 --wait-s 120"
_POLL_S: Final = 0.2
_COPY_WITHIN_S: Final = 90.0  # after the session's request; the copy's own deadlines are shorter


def register(app: typer.Typer) -> None:
    app.command("migrate", epilog=_EXAMPLE)(migrate)


def migrate(
    session: Annotated[str | None, typer.Argument(help="The session's id, as its requests name it.")] = None,
    to: Annotated[str | None, typer.Option(help="The endpoint to move it to.", metavar="HOST:PORT")] = None,
    tenant: Annotated[str, typer.Option(help="The session's tenant, if tenants are configured.")] = "",
    drain: Annotated[str | None, typer.Option(help="Move all sessions off this endpoint.", metavar="HOST:PORT")] = None,
    undrain: Annotated[str | None, typer.Option(help="Let it take sessions again.", metavar="HOST:PORT")] = None,
    wait_s: Annotated[float, typer.Option(help="How long to wait for the sessions' next requests.", min=0)] = 60.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would happen, and change nothing.")] = False,
    admin: Annotated[str, typer.Option(help="The sidecar's admin address.", metavar="HOST:PORT")] = "127.0.0.1:9003",
    token_file: Annotated[
        Path | None, typer.Option(help="The sidecar's listen.admin_token_file.", envvar="FAIRLEAD_ADMIN_TOKEN_FILE")
    ] = None,
) -> None:
    """Move a session (SESSION --to ENDPOINT) or all sessions of an endpoint (--drain ENDPOINT).

    A session moves at its next request: its KV is copied where both engines can do that, and computed again where they
    cannot. A drained endpoint gets no new sessions; those that sent no request in time compute their context again
    elsewhere. With several sidecars over Redis it holds at all of them; without Redis, drain on each. The sidecar
    allows it to who has its token (listen.admin_token_file).
    """
    import httpx

    from fairlead.admin.token import read_token
    from fairlead.errors import UserError
    from fairlead.serving.pool import resolve

    wanted = [name for name, value in (("SESSION", session), ("--drain", drain), ("--undrain", undrain)) if value]
    if len(wanted) != 1 or bool(session) != bool(to):
        raise UserError("migrate: write SESSION --to HOST:PORT, or --drain HOST:PORT, or --undrain HOST:PORT")
    headers = {}
    if token_file is not None:
        headers["authorization"] = f"Bearer {read_token(token_file, '--token-file').decode()}"
    with httpx.Client(base_url=f"http://{_address(admin, '--admin')}", timeout=10.0, headers=headers) as client:
        asking = _Admin(client)
        if session and to:
            named = {"session": session, "tenant": tenant}
            _move(asking, named, resolve(_address(to, "--to"), "--to"), wait_s, dry_run=dry_run)
        elif drain:
            _drain(asking, resolve(_address(drain, "--drain"), "--drain"), wait_s, dry_run=dry_run)
        elif undrain:
            address = resolve(_address(undrain, "--undrain"), "--undrain")
            asking.send("undrain", endpoint=address)
            typer.echo(f"{address} takes sessions again")


class _Admin:
    """The sidecar's admin port. A refusal is shown to the user."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def send(self, name: str, **arguments: Any) -> dict[str, Any]:
        import httpx

        from fairlead.errors import UserError

        try:
            response = self._client.post(f"/migrate/{name}", json=arguments)
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise UserError(f"--admin: no sidecar answers at {self._client.base_url} ({reason}); is it up?") from None
        if response.status_code == 401:
            raise UserError(
                "--token-file: the sidecar wants the token of its listen.admin_token_file; name that file here"
            )
        if response.status_code == 404:
            raise UserError(f"--admin: {self._client.base_url} is not the admin port of a sidecar of this version")
        if response.status_code != 200:
            raise UserError(response.text.strip())
        return dict(response.json())


def _move(admin: _Admin, named: dict[str, str], to: str, wait_s: float, *, dry_run: bool) -> None:
    planned = admin.send("move", **named, to=to, dry_run=dry_run)
    typer.echo(f"from {planned['from']} to {planned['to']} at its next request: {planned['way']}")
    if dry_run:
        return
    until_s, came = time.monotonic() + wait_s, False
    with _progress() as bar:
        task = bar.add_task("waiting for its next request", total=None)
        while (now := admin.send("session", **named))["endpoint"] != to:
            if not now["waits"]:
                if came and not now["copies"]:
                    _fail("it could not be moved and stays where it was; the sidecar's log and metrics say why")
                if not came:
                    came, until_s = True, time.monotonic() + _COPY_WITHIN_S
                    bar.update(task, description="copying")
            if time.monotonic() > until_s:
                admin.send("cancel", **named)
                _fail(f"it sent no request within {wait_s:g} s; it stays, and the move is cancelled")
            time.sleep(_POLL_S)
    typer.echo(f"it is bound to {to}")


def _drain(admin: _Admin, address: str, wait_s: float, *, dry_run: bool) -> None:
    began = admin.send("drain", endpoint=address, dry_run=dry_run)
    found = (
        f"{began['sessions']} sessions and {began['inflight_requests']} requests in flight at {address}; "
        f"other endpoints: {', '.join(began['targets'])}; "
        f"at the next request of a session, {' or '.join(began['ways'])}"
    )
    if dry_run:
        typer.echo(found)
        return
    try:
        typer.echo(found)
        released, running = _emptied(admin, address, began["sessions"], wait_s)
    except KeyboardInterrupt:
        typer.echo(f"{address} goes on draining; fairlead migrate --undrain {address} ends it", err=True)
        raise
    if released:
        typer.echo(f"{released} sessions sent no request in time; they compute their context again wherever they go")
    if running:
        _fail(f"{running} requests still run at {address}; it takes no new session")
    typer.echo(f"{address} is drained and can be stopped; fairlead migrate --undrain {address} takes it back")


def _emptied(admin: _Admin, address: str, sessions: int, wait_s: float) -> tuple[int, int]:
    """Sessions that had to be unbound, and requests that still run there."""
    with _progress() as bar:
        task = bar.add_task("sessions move away", total=sessions)
        until_s = time.monotonic() + wait_s
        while (left := admin.send("drained", endpoint=address)["sessions"]) and time.monotonic() < until_s:
            bar.update(task, completed=max(0, sessions - left))
            time.sleep(_POLL_S)
        released = admin.send("release", endpoint=address)["released"]
        bar.update(task, completed=sessions, description="requests end")
        until_s = time.monotonic() + wait_s
        while (running := admin.send("drained", endpoint=address)["inflight_requests"]) and time.monotonic() < until_s:
            time.sleep(_POLL_S)
    return released, running


def _progress() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True)


def _fail(sentence: str) -> None:
    typer.echo(f"fairlead: {sentence}", err=True)
    raise typer.Exit(1)


def _address(value: str, option: str) -> str:
    from fairlead.addresses import host_and_port
    from fairlead.errors import UserError

    try:
        host_and_port(value)
    except ValueError as error:
        raise UserError(f"{option}: {error}") from None
    return value
