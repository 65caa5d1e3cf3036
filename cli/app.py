"""The commands of ``agentrl``: names, order and panels of its help.

Commands import what they need when they run, so that ``agentrl --help`` stays fast.
"""

from __future__ import annotations

from typing import Annotated

import typer

from cli import (
    check,
    compare,
    completion,
    dump,
    eval,
    gateway,
    launch,
    plugins,
    referee,
    regrade,
    replay,
    report,
    rollouts,
    run,
    show,
    status,
    stop,
    tasks,
    view,
    watch,
    what_if,
)
from cli.arguments import CommandGroup, OwnCommand, ProgramCommand, join_lines

app = typer.Typer(
    name="agentrl",
    cls=CommandGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        typer.echo(f"agentrl {version('agentrl-campaigns')}")
        raise typer.Exit


@app.callback(
    epilog="[bold]KEY=VALUE[/] sets the configuration (see [bold]agentrl show[/]). "
    "Results go to stdout, everything else to stderr."
)
def agentrl(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    _version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Reinforcement-learning campaigns for coding agents, from a laptop to a cluster."""
    context.obj.debug = debug


_RUN, _LOOK, _SERVE = "Run", "Look", "Serve"
app.command(epilog=run.EXAMPLES, rich_help_panel=_RUN)(run.run)
app.command("eval", epilog=eval.EXAMPLES, rich_help_panel=_RUN)(eval.evaluate)
app.command(epilog=regrade.EXAMPLES, rich_help_panel=_RUN)(regrade.regrade)
app.command(epilog=replay.EXAMPLES, rich_help_panel=_RUN)(replay.replay)
app.command(epilog=launch.EXAMPLES, rich_help_panel=_RUN)(launch.launch)
app.command(epilog=show.EXAMPLES, rich_help_panel=_RUN)(show.show)
app.command(epilog=check.EXAMPLES, rich_help_panel=_RUN)(check.check)
app.command(epilog=plugins.EXAMPLES, rich_help_panel=_RUN)(plugins.plugins)
app.command(epilog=stop.EXAMPLES, rich_help_panel=_RUN)(stop.stop)
app.add_typer(tasks.app, name="tasks", rich_help_panel=_RUN)
app.command(epilog=status.EXAMPLES, rich_help_panel=_LOOK)(status.status)
app.command(epilog=watch.EXAMPLES, rich_help_panel=_LOOK)(watch.watch)
app.command(epilog=view.EXAMPLES, rich_help_panel=_LOOK)(view.view)
app.command(epilog=rollouts.EXAMPLES, rich_help_panel=_LOOK)(rollouts.rollouts)
app.command(epilog=report.EXAMPLES, rich_help_panel=_LOOK)(report.report)
app.command(epilog=compare.EXAMPLES, rich_help_panel=_LOOK)(compare.compare)
app.command("what-if", epilog=what_if.EXAMPLES, rich_help_panel=_LOOK)(what_if.what_if)
app.command("dump-trajectories", epilog=dump.EXAMPLES, rich_help_panel=_LOOK)(
    dump.dump_trajectories
)
app.command(epilog=completion.EXAMPLES, rich_help_panel=_SERVE)(completion.completion)
app.command(cls=ProgramCommand, epilog=gateway.EXAMPLES, rich_help_panel=_SERVE)(gateway.gateway)
app.add_typer(referee.app, name="referee", rich_help_panel=_SERVE)
_GROUPS = (tasks.app, referee.app)
for _command in (
    *app.registered_commands,
    *(command for group in _GROUPS for command in group.registered_commands),
):
    _command.help = join_lines(_command.callback)
    if _command.cls is not ProgramCommand:
        _command.cls = OwnCommand
