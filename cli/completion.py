"""``agentrl completion``: the script that a shell reads, for commands, flags, keys and runs.

The script asks ``agentrl`` itself, by a variable with the line (``complete_line``). Each shell
gets the whole word, because bash cuts words at ``=`` and ``:``, and is told not to add a space
where more belongs to the word.
"""

from __future__ import annotations

from typing import Annotated

import typer

from cli.arguments import examples
from cli.complete_words import VARIABLE

EXAMPLES = examples(
    'eval "$(agentrl completion bash)"        # in ~/.bashrc',
    'eval "$(agentrl completion zsh)"         # in ~/.zshrc, after compinit',
    "agentrl completion fish > ~/.config/fish/completions/agentrl.fish",
)
_BASH = f"""\
_agentrl_completion() {{
  local line=${{COMP_LINE:0:COMP_POINT}} current=${{COMP_WORDS[COMP_CWORD]}} word each
  word=${{line##*[[:space:]]}}
  # bash cuts words at = and :, and replaces only what follows
  [[ $current == [=:] ]] && current=
  COMPREPLY=()
  while IFS=$'\\t' read -r each _; do
    [[ $each == "$word"* ]] && COMPREPLY+=("${{each#"${{word%"$current"}}"}}")
  done < <({VARIABLE}=$line "$1" 2>/dev/null)
  [[ ${{#COMPREPLY[@]}} == 1 && ${{COMPREPLY[0]}} == *[=./-] ]] && compopt -o nospace
  return 0
}}
complete -o bashdefault -o default -F _agentrl_completion agentrl
"""
_ZSH = f"""\
#compdef agentrl
_agentrl_completion() {{
  local each name answer
  local -a whole begun
  answer=$({VARIABLE}="${{(pj: :)words[1,CURRENT]}}" $words[1] 2>/dev/null)
  for each in "${{(@f)answer}}"; do
    name=${{each%%$'\\t'*}}
    [[ -n $name && $name == "$PREFIX"* ]] || continue
    each=${{name//:/\\\\:}}:${{each#*$'\\t'}}
    if [[ $name == *[=./-] ]]; then begun+=("$each"); else whole+=("$each"); fi
  done
  (( $#begun )) && _describe -V agentrl begun -S ''
  (( $#whole )) && _describe -V agentrl whole
  (( $#begun + $#whole )) || _files
}}
compdef _agentrl_completion agentrl
"""
_FISH = f"""\
function __agentrl_complete
  set -l found ({VARIABLE}=(commandline -cp | string collect) agentrl 2>/dev/null)
  if test (count $found) -gt 0
    printf '%s\\n' $found
  else
    __fish_complete_path (commandline -ct)
  end
end
complete --command agentrl --no-files --arguments "(__agentrl_complete)"
"""
SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def completion(
    shell: Annotated[
        str,
        typer.Argument(metavar="[bash|zsh|fish]", help="The shell.", show_default=False),
    ],
) -> None:
    """Print the script by which a shell completes agentrl's commands, flags, keys and runs."""
    if shell not in SCRIPTS:
        raise typer.BadParameter(f"{shell} is none of {', '.join(SCRIPTS)}")
    typer.echo(SCRIPTS[shell], nl=False)
