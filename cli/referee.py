"""``agentrl referee``: judge a gateway, anybody's, from both ends."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.arguments import Json, examples

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager

    from agentrl.referee.adapters import Gateway
    from agentrl.referee.program import Scenario
    from agentrl.referee.trial import Cell
    from agentrl.referee.vocabulary import Vocabulary

app = typer.Typer(
    no_args_is_help=True,
    help="Judge a gateway: does the policy see what is sent, is what was sampled trained exactly?",
)
ENGINE_EXAMPLES = examples("agentrl referee engine --port 9000")
RUN_EXAMPLES = examples(
    "agentrl referee run --engine http://127.0.0.1:9000 --adapter my_gateway.py --out out.json",
    "agentrl referee run --port 9000 --open URL --finish URL --wire chat --group edits,retries",
)
EXPLAIN_EXAMPLES = examples("agentrl referee explain out.json edit_command --wire chat")
SELFTEST_EXAMPLES = examples("agentrl referee selftest")
WIRE_NAMES = ("anthropic", "chat", "responses")
Tokenizer = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="The policy's tokenizer (default: that of model=tiny).",
        show_default=False,
    ),
]
Form = Annotated[
    str,
    typer.Option("--format", metavar="[hermes|qwen3_coder|glm]", help="How it writes calls."),
]


@app.command("engine", epilog=ENGINE_EXAMPLES)
def engine(
    port: Annotated[int, typer.Option(metavar="N", help="Its port; 0: any free one.")] = 9000,
    tokenizer: Tokenizer = None,
    form: Form = "hermes",
) -> None:
    """Serve the scripted engine for a gateway, on all wires, until ctrl-C.

    SGLang's /generate and chat with input_ids; vLLM's chat, completions and /inference/v1/generate.
    """
    import asyncio

    from agentrl.referee.engine import CueEngine
    from agentrl.referee.wires import serve_engine
    from cli.invocation import print_json

    served = CueEngine(_load(tokenizer, form))

    async def serve() -> None:
        async with serve_engine(served, port) as url:
            print_json({"url": url, **await served.describe()})
            await asyncio.Event().wait()

    asyncio.run(serve())


@app.command("run", epilog=RUN_EXAMPLES)
def run(
    adapter: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A Python file with open() and finish(handle).", show_default=False
        ),
    ] = None,
    open_url: Annotated[
        str | None,
        typer.Option("--open", metavar="URL", help="Opens a session.", show_default=False),
    ] = None,
    finish_url: Annotated[
        str | None,
        typer.Option("--finish", metavar="URL", help="Returns its samples.", show_default=False),
    ] = None,
    engine_url: Annotated[
        str | None,
        typer.Option(
            "--engine",
            metavar="URL",
            help="The engine behind the gateway, as `agentrl referee engine` serves it.",
            show_default=False,
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(metavar="N", help="Without --engine: serve one at this port.")
    ] = 9000,
    wire: Annotated[
        str, typer.Option(metavar="API,…", help=f"Of {', '.join(WIRE_NAMES)}.")
    ] = ",".join(WIRE_NAMES),
    group: Annotated[
        str, typer.Option(metavar="NAME,…", help="Only scenarios of such groups, or names.")
    ] = "",
    scenarios: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Scenarios of one's own.", show_default=False),
    ] = None,
    walks: Annotated[
        int, typer.Option(metavar="N", help="Then N random programs per API, until one fails.")
    ] = 0,
    seed: Annotated[int, typer.Option(metavar="N", help="Of random programs.")] = 0,
    timeout: Annotated[
        float, typer.Option(metavar="X", help="Deadline of a request, in seconds.")
    ] = 30.0,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write all as JSON, for explain.", show_default=False),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the table as a page.", show_default=False),
    ] = None,
    tokenizer: Tokenizer = None,
    form: Form = "hermes",
    as_json: Json = False,
) -> None:
    """Run the scenarios against a gateway, and print what is wrong, lost or costly.

    Exit code 1: something is wrong; 2: tokens are lost, or requests refused; 4: the gateway does
    not answer. More sequences than needed are a cost, and what is not offered is no failure.
    """
    import asyncio

    from agentrl.referee.adapters import FileGateway, UrlGateway
    from agentrl.referee.program import load_scenarios, read_scenarios

    wires = _choose(wire, WIRE_NAMES, "--wire")
    known = read_scenarios(scenarios) if scenarios else load_scenarios()
    chosen = list(known.values())
    if group:
        names = {name for each in chosen for name in (each.group, each.name)}
        wanted = _choose(group, sorted(names), "--group")
        chosen = [each for each in chosen if each.group in wanted or each.name in wanted]
    gateway: Gateway
    if adapter is not None and open_url is None and finish_url is None:
        gateway = FileGateway(adapter, timeout)
    elif open_url and finish_url and adapter is None:
        gateway = UrlGateway(open_url, finish_url, timeout)
    else:
        raise typer.BadParameter("give either --adapter FILE, or --open URL and --finish URL")
    name = str(adapter or open_url)
    report = asyncio.run(
        _judge(gateway, name, engine_url, port, chosen, wires, (tokenizer, form), walks, seed)
    )
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
    from agentrl.referee.report import explain as tell
    from agentrl.referee.report import read_run
    from cli.invocation import stdout
    from runners.records.text import make_printable

    console = stdout()
    for line in tell(read_run(out), scenario, wire):
        console.print(make_printable(line), soft_wrap=True)


@app.command("selftest", epilog=SELFTEST_EXAMPLES)
def selftest(tokenizer: Tokenizer = None, form: Form = "hermes", as_json: Json = False) -> None:
    """Judge a perfect gateway and some seventy broken ones: each has to be seen.

    Exit code 1: one is not seen, or the perfect one is not clean.
    """
    import asyncio

    from agentrl.referee.program import load_scenarios
    from agentrl.referee.selftest import run_selftest
    from cli.invocation import print_json, stderr, stdout

    vocabulary, known = _load(tokenizer, form), load_scenarios()
    with stderr().status("the self-test…") as status:
        seen = asyncio.run(
            run_selftest(vocabulary, known.values(), lambda each: status.update(each.name))
        )
    failed = [each for each in seen if not each.ok]
    if as_json:
        rows = [{"name": s.name, "score": s.score, "scenario": s.scenario} for s in seen]
        print_json({"seen": rows, "failed": [each.name for each in failed]})
    else:
        stdout().print(f"{len(seen) - 1} broken gateways, {len(failed)} failures")
        for each in failed:
            stdout().print(f"  {each.name}: {each.scenario or f'not seen by {each.score}'}")
    raise typer.Exit(int(bool(failed)))


async def _judge(
    gateway: Gateway,
    name: str,
    engine_url: str | None,
    port: int,
    chosen: Sequence[Scenario],
    wires: Sequence[str],
    model: tuple[Path | None, str],
    walks: int,
    seed: int,
) -> dict[str, Any]:
    from agentrl.referee.engine import CueEngine, RemoteEngine, ScenarioEngine
    from agentrl.referee.report import describe_run
    from agentrl.referee.trial import Trial, collect, now
    from agentrl.referee.walks import find_failure
    from agentrl.referee.wires import serve_engine
    from cli.invocation import stderr

    served: AbstractAsyncContextManager[Any]
    engine: ScenarioEngine
    first = 0
    if engine_url is not None:
        engine = remote = RemoteEngine(engine_url)
        described = await remote.describe()
        first = described["samplings"]
        vocabulary = _load(model[0] or Path(described["tokenizer"]), described["format"])
        served = _nothing()
    else:
        vocabulary = _load(*model)
        engine = local = CueEngine(vocabulary)
        served = serve_engine(local, port)
    trial = Trial(gateway, engine, vocabulary, first_sampling=first)
    with stderr().status("") as status:
        done: list[Cell] = []

        def show(cell: Cell) -> None:
            done.append(cell)
            total = len(chosen) * len(wires)
            status.update(f"{len(done)} of {total}: {cell.scenario.name} on {cell.wire}")

        async with served:
            cells, ended = await collect(trial, chosen, wires, show)
            for wire in wires if walks and not ended else ():
                status.update(f"random programs on {wire}…")
                failed = await find_failure(trial, wire, examples=walks, seed=seed)
                cells += [failed] if failed is not None else []
    return describe_run(cells, vocabulary, gateway=name, date=now(), ended=ended)


def _nothing() -> AbstractAsyncContextManager[None]:
    from contextlib import nullcontext

    return nullcontext()


def _load(tokenizer: Path | None, form: str) -> Vocabulary:
    from agentrl.referee.vocabulary import Vocabulary
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

    from rich.table import Table
    from rich.text import Text

    from agentrl.referee.report import list_rows, write_page, write_scores, write_totals
    from cli.invocation import print_json, report_error, stdout
    from conf.errors import ConfigError

    for file, text in ((out, json.dumps(report)), (html, write_page(report))):
        if file is not None:
            try:
                file.write_text(text, "utf-8")
            except OSError as error:
                raise ConfigError(f"{file}: {error.strerror}") from error
    if as_json:
        print_json(report)
        return
    wires, rows = list_rows(report)
    table = Table(box=None)
    for column in ("group", "scenario", *wires):
        table.add_column(column, overflow="fold")
    styles = {"wrong": "red", "lost": "red", "costly": "yellow", "not offered": "dim"}
    for group, name, cells in rows:
        shown = [
            Text(write_scores(cells[wire]), styles.get(cells[wire]["state"], ""))
            if wire in cells
            else Text()
            for wire in wires
        ]
        table.add_row(group, name, *shown)
    stdout().print(table)
    for cell in report["cells"]:
        if cell["scenario"] == "walk":
            stdout().print(f"\na random program fails on {cell['wire']}:\n{cell['program']}")
    stdout().print(write_totals(report), soft_wrap=True)
    if report["ended"]:
        report_error(report["ended"])
