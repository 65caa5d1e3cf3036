"""``agentrl view``: look at a run in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.arguments import RunDir, examples

EXAMPLES = examples(
    "agentrl view runs/20260101-120000-mixed",
    "agentrl view runs/20260101-120000-mixed train-000003-002-05 --open",
    "agentrl view runs/20260101-120000-mixed --out run.html",
    "ssh -L 8721:127.0.0.1:8721 cluster agentrl view runs/20260101-120000-mixed",
)


def view(
    run: RunDir,
    rollout: Annotated[
        str | None,
        typer.Argument(metavar="ROLLOUT", help="Begin with this one.", show_default=False),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            max=65535,
            help="Port on 127.0.0.1; 0: any. Default: the first free one from 8721 on.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the page with all its rollouts to one file, and serve nothing.",
            show_default=False,
        ),
    ] = None,
    browser: Annotated[
        bool, typer.Option("--open", help="Open the page in this machine's browser.")
    ] = False,
) -> None:
    """Show the rollouts of a run, running or ended, in a browser; the run is only read.

    The address works on this machine only, and only whole. ctrl-C ends it.
    """
    import asyncio
    from contextlib import suppress

    from runners.observe.viewer import ViewError

    if out is not None:
        if port is not None or browser or rollout is not None:
            raise ViewError(
                "ROLLOUT, --port and --open are of a page that is served: drop them, or --out"
            )
        _write(run, out)
        return
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(run, rollout, port, browser=browser))


async def _serve(run: Path, rollout: str | None, port: int | None, *, browser: bool) -> None:
    import asyncio
    import webbrowser
    from urllib.parse import quote

    from cli.invocation import stderr
    from runners.observe.viewer.server import ViewServer

    if rollout is not None:
        await asyncio.to_thread(_require_rollout, run, rollout)
    async with ViewServer(run, port) as server:
        address = server.url if rollout is None else f"{server.url}#{quote(rollout)}"
        typer.echo(address)
        stderr().print("ctrl-C ends it", style="bright_black")
        if browser:
            await asyncio.to_thread(webbrowser.open, address)
        await asyncio.Event().wait()


def _require_rollout(run: Path, rollout: str) -> None:
    from runners.observe.viewer import find_attempts
    from runners.records.store import RunStore

    with RunStore.open(run, read_only=True) as store:
        find_attempts(store, rollout)


def _write(run: Path, out: Path) -> None:
    import tempfile

    from runners.observe.export import dump, find_decode, to_dump_error
    from runners.observe.report import read_document
    from runners.records.store import RunStore

    with RunStore.open(run, read_only=True) as store:
        try:
            with tempfile.TemporaryDirectory(prefix=".view.", dir=out.parent) as folder:
                decode = find_decode(store)
                written = dump(
                    store,
                    Path(folder),
                    formats=("html",),
                    decode=decode,
                    report=lambda: read_document(store).to_dict(),
                )
                next(file for file in written.files if file.format == "html").path.replace(out)
        except OSError as error:
            raise to_dump_error(error, out) from error
    typer.echo(out)
