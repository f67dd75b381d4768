"""`fairlead doctor URL...`: what an engine gives Fairlead, what it withholds, and the flag to set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_EXAMPLE = "Example: fairlead doctor http://10.0.0.1:8000 http://10.0.0.2:30000"


def register(app: typer.Typer) -> None:
    app.command("doctor", epilog=_EXAMPLE)(doctor)


def doctor(
    urls: Annotated[list[str], typer.Argument(help="The engines: http://host:port of each.", metavar="URL...")],
    api_key: Annotated[
        str, typer.Option(help="Sent as a bearer token.", envvar="FAIRLEAD_ENGINE_API_KEY", show_envvar=True)
    ] = "",
    prompt: Annotated[
        Path | None, typer.Option(help="A text to send instead of doctor's own 400 words.", metavar="FILE")
    ] = None,
) -> None:
    """Send each engine a few short requests, read its pages, and print a page about it.

    `gives` is what Fairlead uses, `withholds` what it does without, with the flag that would give it; `mind` is what an
    operator should know.
    """
    import uvloop

    from fairlead.engines.examine import PROMPT, examine
    from fairlead.engines.findings import text

    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    asked = PROMPT if prompt is None else _text_of(prompt)
    for number, url in enumerate(urls):
        typer.echo(("\n" if number else "") + text(uvloop.run(examine(_checked(url), headers, asked))))


def _checked(url: str) -> str:
    from fairlead.errors import UserError

    if not url.startswith(("http://", "https://")):
        raise UserError(f"{url}: write an engine as http://host:port")
    return url.rstrip("/").removesuffix("/v1")


def _text_of(path: Path) -> str:
    from fairlead.errors import UserError

    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"--prompt {path}: cannot be read ({error.strerror}); name a text file") from None
    except UnicodeDecodeError:
        raise UserError(f"--prompt {path}: is not UTF-8; name a text file") from None
