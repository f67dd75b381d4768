"""`fairlead reuse`: context reuse without a gateway: order and schedule batches, and show how a request is changed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fairlead.context.draft import Settings
    from fairlead.context.forms import Change, Form
    from fairlead.tools.reuse.files import OfflineIndex

_app = typer.Typer(
    help="Order, schedule and shorten prompts so that engines find more of them cached.", no_args_is_help=True
)
_Contexts = Annotated[
    Path, typer.Argument(help='JSON lines: {"id": "q1", "blocks": ["d7", "d2"]}.', show_default=False)
]
_BYTES_PER_TOKEN = 4


def register(app: typer.Typer) -> None:
    app.add_typer(_app, name="reuse")


@_app.command(epilog="Example: fairlead reuse build contexts.jsonl --out index.json")
def build(
    contexts: _Contexts,
    out: Annotated[Path, typer.Option(help="Where the index goes.", metavar="FILE")] = Path("index.json"),
) -> None:
    """Cluster known contexts, and order each one's blocks so that contexts share prefixes."""
    import msgspec

    index = _built(contexts)
    _write(out, msgspec.json.encode(index))
    typer.echo(f"wrote {out}: {len(index.contexts):,} contexts; {_sharing(contexts, index)}")


@_app.command(epilog="Example: fairlead reuse query index.json d2 d7 d9")
def query(
    index: Annotated[Path, typer.Argument(help="The index that `build` wrote.", show_default=False)],
    blocks: Annotated[list[str], typer.Argument(help="Blocks of a new context, most relevant first.")],
) -> None:
    """Order a new context's blocks so that they share most with an index."""
    from fairlead.tools.reuse.files import read_index

    read = read_index(index)
    numbers = {str(block): block for context in read.contexts for block in context.blocks}
    order, shared = read.query([numbers.get(block, block) for block in blocks])
    typer.echo(f"{' '.join(map(str, order))}\n{shared} of {len(blocks)} blocks are a prefix shared with the index")


@_app.command(epilog="Example: fairlead reuse schedule contexts.jsonl > batch.jsonl")
def schedule(contexts: _Contexts) -> None:
    """Print contexts as JSON lines in the order in which to send them, each with its blocks in order."""
    import msgspec

    index = _built(contexts)
    for position in index.schedule:
        placed = index.contexts[position]
        typer.echo(msgspec.json.encode({"id": placed.id, "blocks": placed.blocks}))
    typer.echo(f"{len(index.contexts):,} contexts; {_sharing(contexts, index)}", err=True)


@_app.command(epilog="Example: fairlead reuse explain request.json --after earlier.jsonl --body")
def explain(
    request: Annotated[Path, typer.Argument(help="Body of a request to a model.", show_default=False)],
    after: Annotated[
        Path | None, typer.Option(help="Requests sent before it, as JSON lines.", metavar="FILE", show_default=False)
    ] = None,
    do: Annotated[str, typer.Option(help="What to do: order, dedup, or both.", metavar="NAMES")] = "order,dedup",
    formats: Annotated[str, typer.Option(help="Formats of blocks to look for.", metavar="NAMES")] = "xml,numbered,json",
    body: Annotated[bool, typer.Option("--body", help="Print the changed body too.")] = False,
) -> None:
    """Show how a request is changed: what is reordered, dropped and annotated, and what that saves."""
    import time

    from fairlead.context.reuse import ContextReuse
    from fairlead.errors import UserError

    settings = _settings(do, formats)
    reuse = ContextReuse(clock_s=time.perf_counter, limit_s=60.0)
    for line in _read(after).splitlines() if after is not None else ():
        reuse.rewrite(line, settings)
    read = _read(request)
    plan = reuse.plan(read, settings)
    if plan is None:
        raise UserError(f"{request}: has no text of a request to a model; write a JSON body with messages or a prompt")
    form = plan.forms[plan.best]
    for change in form.changes:
        typer.echo(_described(change))
    typer.echo(_savings(form))
    if body:
        typer.echo(read if form.body is None else form.body)


def _described(change: Change) -> str:
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in change.place).removeprefix(".")
    if not change.blocks:
        return f"{place}: repeated parts are references"
    line = f"{place}: {change.blocks} blocks ({change.format})"
    if change.is_reordered:
        line += f"; sent in the order {' '.join(str(block + 1) for block in change.order)}, with their priorities"
    if change.references:
        line += f"; repeated, now references: {' '.join(str(block + 1) for block in change.references)}"
    return line


def _savings(form: Form) -> str:
    if form.body is None and not form.known_bytes:
        return "nothing changes"
    known, dropped = form.known_bytes // _BYTES_PER_TOKEN, form.dropped_bytes // _BYTES_PER_TOKEN
    return f"about {known:,} tokens of blocks begin as before, about {dropped:,} tokens are dropped"


def _settings(do: str, formats: str) -> Settings:
    from fairlead.context.blocks import FORMATS
    from fairlead.context.draft import Settings
    from fairlead.errors import UserError

    done, wanted = ({name.strip() for name in names.split(",") if name.strip()} for names in (do, formats))
    if not done or done - {"order", "dedup"}:
        raise UserError(f"--do {do}: write order, dedup, or order,dedup")
    if not wanted or wanted - set(FORMATS):
        raise UserError(f"--formats {formats}: write some of {','.join(FORMATS)}")
    return Settings("order" in done, "dedup" in done, tuple([name for name in FORMATS if name in wanted]))


def _built(path: Path) -> OfflineIndex:
    from rich.console import Console

    from fairlead.errors import UserError, how_to_install
    from fairlead.tools.reuse.files import build_index, read_contexts

    contexts = read_contexts(path)
    try:
        with Console(stderr=True).status(f"clustering {len(contexts):,} contexts"):
            return build_index(contexts)
    except ModuleNotFoundError as error:
        if str(error.name).split(".")[0] not in ("numpy", "scipy"):
            raise
        raise UserError(f"clustering needs {error.name}; {how_to_install('fit')}") from None


def _sharing(path: Path, index: OfflineIndex) -> str:
    from fairlead.tools.reuse.files import read_contexts, shared_blocks

    before, total = shared_blocks(context.blocks for context in read_contexts(path))
    now, _ = shared_blocks(index.contexts[position].blocks for position in index.schedule)
    return f"{now / max(1, total):.1%} of all blocks are in a shared prefix, as received {before / max(1, total):.1%}"


def _read(path: Path) -> bytes:
    from fairlead.errors import UserError

    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); pass the path of a file") from None


def _write(path: Path, content: bytes) -> None:
    from fairlead.errors import UserError

    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(content)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise UserError(f"{path}: cannot be written ({error.strerror}); pass --out with another path") from None
