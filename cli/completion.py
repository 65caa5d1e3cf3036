"""``agentrl completion``: the script that a shell reads, for commands, flags, keys and runs.

The script asks ``agentrl`` itself through typer's protocol. Each shell gets the whole word, because
bash cuts words at ``=`` and ``:``, and is told not to add a space where more belongs to the word.
"""

from __future__ import annotations

from typing import Annotated

import typer

from cli.arguments import examples

EXAMPLES = examples(
    'eval "$(agentrl completion bash)"        # in ~/.bashrc',
    'eval "$(agentrl completion zsh)"         # in ~/.zshrc, after compinit',
    "agentrl completion fish > ~/.config/fish/completions/agentrl.fish",
)
VARIABLE = "_AGENTRL_COMPLETE"
"""Set by a shell that asks for completions."""
_ASK = f"{VARIABLE}=complete_fish _TYPER_COMPLETE_FISH_ACTION=get-args"
"""Of typer's protocols the one that takes the line as it is, and gives a value and a help each."""
_BASH = f"""\
_agentrl_completion() {{
  local line=${{COMP_LINE:0:COMP_POINT}} current=${{COMP_WORDS[COMP_CWORD]}} word each
  word=${{line##*[[:space:]]}}
  # bash cuts words at = and :, and replaces only what follows
  [[ $current == [=:] ]] && current=
  COMPREPLY=()
  while IFS=$'\\t' read -r each _; do
    [[ $each == "$word"* ]] && COMPREPLY+=("${{each#"${{word%"$current"}}"}}")
  done < <(_TYPER_COMPLETE_ARGS=$line {_ASK} "$1" 2>/dev/null)
  [[ ${{#COMPREPLY[@]}} == 1 && ${{COMPREPLY[0]}} == *[=./] ]] && compopt -o nospace
  return 0
}}
complete -o bashdefault -o default -F _agentrl_completion agentrl
"""
_ZSH = f"""\
#compdef agentrl
_agentrl_completion() {{
  local each name answer
  local -a whole begun
  answer=$(_TYPER_COMPLETE_ARGS="${{(pj: :)words[1,CURRENT]}}" {_ASK} $words[1] 2>/dev/null)
  for each in "${{(@f)answer}}"; do
    name=${{each%%$'\\t'*}}
    [[ -n $name && $name == "$PREFIX"* ]] || continue
    each=${{name//:/\\\\:}}:${{each#*$'\\t'}}
    if [[ $name == *[=./] ]]; then begun+=("$each"); else whole+=("$each"); fi
  done
  (( $#begun )) && _describe -V agentrl begun -S ''
  (( $#whole )) && _describe -V agentrl whole
  (( $#begun + $#whole )) || _files
}}
compdef _agentrl_completion agentrl
"""
_FISH = f"""\
function __agentrl_complete
  _TYPER_COMPLETE_ARGS=(commandline -cp | string collect) {_ASK} agentrl 2>/dev/null
end
complete --command agentrl --no-files --arguments "(__agentrl_complete)"
complete --command agentrl --force-files --condition "test -z (__agentrl_complete | string collect)"
"""
SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def prepare() -> None:
    """Register typer's protocols, which it does by itself only together with its own flags."""
    from typer.completion import get_completion_inspect_parameters

    get_completion_inspect_parameters()


def completion(
    shell: Annotated[
        str,
        typer.Argument(
            metavar="[bash|zsh|fish]",
            help="The shell.",
            show_default=False,
            autocompletion=lambda: [*SCRIPTS],
        ),
    ],
) -> None:
    """Print the script by which a shell completes agentrl's commands, flags, keys and runs."""
    if shell not in SCRIPTS:
        raise typer.BadParameter(f"{shell} is none of {', '.join(SCRIPTS)}")
    typer.echo(SCRIPTS[shell], nl=False)
