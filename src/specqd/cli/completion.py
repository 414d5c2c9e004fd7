"""Completes names of models in shells; they have colons, at which Bash splits words."""

import os

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    split_arg_string,
)

# Bash replaces only what follows the last colon of a word, unless COMP_WORDBREAKS lacks it. The
# program gets the line itself, and the script takes from each answer what Bash keeps.
_SCRIPT = r"""%(complete_func)s() {
    local line="${COMP_LINE:0:COMP_POINT}" kept="" type value
    local word="${line##*[[:space:]]}"
    [[ $word == -*=* ]] && word="${word#*=}"
    [[ $COMP_WORDBREAKS == *:* ]] && kept="${word%%"${word##*:}"}"
    COMPREPLY=()
    while IFS=',' read -r type value; do
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("${value#"$kept"}") ;;
        esac
    done < <(env COMP_WORDS="$line" %(complete_var)s=bash_complete "$1")
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""


@add_completion_class
class ColonsInBash(BashComplete):
    """Click's completion for words with colons."""

    source_template = _SCRIPT

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the one that is completed, and that one, as far as it is written."""
        line = os.environ["COMP_WORDS"]
        words = split_arg_string(line)[1:]
        return (words[:-1], words[-1]) if words and not line[-1].isspace() else (words, "")


def complete_model(
    context: click.Context, parameter: click.Parameter, begun: str
) -> list[CompletionItem]:
    """Short names and cached models that begin so, else files."""
    from specqd.hub import model_names

    found = [CompletionItem(name) for name in model_names() if begun and name.startswith(begun)]
    return found or [CompletionItem(begun, type="file")]
