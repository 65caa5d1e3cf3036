"""``agentrl referee``: judge a gateway, anybody's, from both ends."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.arguments import Json, examples

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentrl.referee.policy import Vocabulary
    from agentrl.referee.program import Scenario

app = typer.Typer(
    no_args_is_help=True,
    help="Judge a gateway: does the policy see what is sent, is what was sampled trained exactly?",
)
RUN_EXAMPLES = examples(
    "agentrl referee run my_gateway.py --out out.json --html out.html",
    "agentrl referee run my_gateway.py --wire chat --only edits,retries",
)
EXPLAIN_EXAMPLES = examples("agentrl referee explain out.json edit_command --wire chat")
WIRE_NAMES = ("anthropic", "chat", "responses", "google")


@app.command("run", epilog=RUN_EXAMPLES)
def run(
    adapter: Annotated[
        Path,
        typer.Argument(
            metavar="ADAPTER",
            help="A Python file with open() and finish(handle).",
            show_default=False,
        ),
    ],
    port: Annotated[int, typer.Option(metavar="N", help="Of the engine; 0: a free one.")] = 9000,
    wire: Annotated[
        str, typer.Option(metavar="API,…", help=f"Of {', '.join(WIRE_NAMES)}.")
    ] = ",".join(WIRE_NAMES),
    only: Annotated[
        str, typer.Option("--only", metavar="GROUP,…", help="Groups or names of scenarios.")
    ] = "",
    scenarios: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Scenarios of one's own.", show_default=False),
    ] = None,
    walks: Annotated[
        int, typer.Option(metavar="N", help="Then N random programs per API, until one fails.")
    ] = 0,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write all as JSON, for explain.", show_default=False),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the table as a page.", show_default=False),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="The policy's tokenizer (default: that of model=tiny).",
            show_default=False,
        ),
    ] = None,
    form: Annotated[
        str,
        typer.Option("--format", metavar="[hermes|qwen3_coder|glm]", help="How it writes calls."),
    ] = "hermes",
    as_json: Json = False,
) -> None:
    """Serve an engine for a gateway, run the scenarios, and print what is wrong, lost or costly.

    Exit code 1: something is wrong; 2: tokens are lost, or requests refused; 4: the gateway does
    not answer. More sequences than needed are a cost, and what is not offered is no failure.
    """
    import asyncio

    from agentrl.referee.program import load_scenarios, read_scenarios

    wires = _choose(wire, WIRE_NAMES, "--wire")
    known = read_scenarios(scenarios) if scenarios else load_scenarios()
    chosen = list(known.values())
    if only:
        names = {name for each in chosen for name in (each.group, each.name)}
        wanted = _choose(only, sorted(names), "--only")
        chosen = [each for each in chosen if each.group in wanted or each.name in wanted]
    vocabulary = _load(tokenizer, form)
    report = asyncio.run(_judge(adapter, port, vocabulary, chosen, wires, walks))
    _write(report, out, html, as_json=as_json)
    raise typer.Exit(4 if report["ended"] else report["exit_code"])


@app.command("explain", epilog=EXPLAIN_EXAMPLES)
def explain(
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="A file of run --out.", show_default=False)
    ],
    scenario: Annotated[str, typer.Argument(metavar="SCENARIO", show_default=False)],
    wire: Annotated[
        str | None,
        typer.Option(metavar="API", help="Only on this API.", show_default=False),
    ] = None,
) -> None:
    """Tell what happened: the request, the engine's prompt, the first token that differs."""
    from rich.text import Text

    from agentrl.referee.report import explain as tell
    from agentrl.referee.report import read_run
    from cli.invocation import stdout

    stdout().print(Text("\n".join(tell(read_run(out), scenario, wire))), soft_wrap=True)


async def _judge(
    adapter: Path,
    port: int,
    vocabulary: Vocabulary,
    chosen: Sequence[Scenario],
    wires: Sequence[str],
    walks: int,
) -> dict[str, Any]:
    from agentrl.referee.adapters import FileGateway
    from agentrl.referee.policy import CueEngine
    from agentrl.referee.report import describe_run
    from agentrl.referee.trial import Trial, find_failure
    from agentrl.referee.wires import serve_engine
    from cli.invocation import stderr

    engine, gateway = CueEngine(vocabulary), FileGateway(adapter)
    trial, directory = Trial(gateway, engine), vocabulary.directory.resolve()
    total = len(chosen) * len(wires)
    async with serve_engine(engine, port) as url:
        stderr().print(f"the engine is at {url}, its tokenizer in {directory}", soft_wrap=True)
        with stderr().status("waiting for the gateway…") as status:
            await gateway.start(url, directory)
            cells, ended = await trial.run(
                chosen, wires, lambda done: status.update(f"{len(done)} of {total} are judged")
            )
            for wire in wires if walks and not ended else ():
                status.update(f"random programs on {wire}…")
                failed = await find_failure(trial, wire, walks)
                cells += [failed] if failed is not None else []
    return describe_run(cells, vocabulary, gateway=str(adapter), ended=ended)


def _load(tokenizer: Path | None, form: str) -> Vocabulary:
    from agentrl.referee.policy import Vocabulary
    from runners.records.checkpoints import find_shipped_policy

    return Vocabulary(tokenizer or find_shipped_policy(), form)


def _choose(given: str, known: Sequence[str], option: str) -> list[str]:
    from conf.suggestions import suggest

    wanted = [part.strip() for part in given.split(",") if part.strip()]
    for part in wanted:
        if part not in known:
            hint = suggest(part, known) or f"choose from {', '.join(known)}"
            raise typer.BadParameter(f"{option} {part}: {hint}")
    return wanted


def _write(report: dict[str, Any], out: Path | None, html: Path | None, *, as_json: bool) -> None:
    import json

    from agentrl.referee.report import print_run, write_page
    from cli.invocation import print_json, report_error, stdout
    from conf.errors import ConfigError

    for file, write in ((out, json.dumps), (html, write_page)):
        if file is not None:
            try:
                file.write_text(write(report), "utf-8")
            except OSError as error:
                raise ConfigError(f"{file}: {error.strerror}") from error
    if as_json:
        print_json(report)
        return
    print_run(report, stdout())
    if report["ended"]:
        report_error(report["ended"])
