"""Print the script that completes commands in a shell: bash, zsh or fish.

The script is static: it is made once, from the help of every command, and no Python starts while you type.
Make it again after an update. If it knows no word, the shell completes file names.

    bash   trainyard completion bash > ~/.local/share/bash-completion/completions/trainyard
    zsh    echo 'source <(trainyard completion zsh)' >> ~/.zshrc
    fish   trainyard completion fish > ~/.config/fish/completions/trainyard.fish

Reads:      the help of every command
Writes:     the script on stdout
Exit codes: 0 printed; 2 wrong usage

Example:    trainyard completion bash
"""

import argparse
import io
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout, suppress
from importlib import import_module

from trainyard.command import output
from trainyard.command.parser import script_parser
from trainyard.commands import COMMANDS, module_name
from trainyard.errors import ExitCode

SHELLS = ("bash", "zsh", "fish")
Words = Mapping[str, tuple[str, ...]]
"""The words before the cursor (`image build`, or with an option `image build --level`) -> what can follow."""
_OPTION = re.compile(r"^  (?:-\w, )?(--[a-z][a-z0-9-]*)(?: \{([^}]*)\})?", re.M)
_OTHER_NAME = re.compile(r"^  --[a-z].*?, (--[a-z][a-z0-9-]*)", re.M)
_POSITIONAL = re.compile(r"^  (?:\{([^}]*)\}|[A-Z_]+ +one of: ([a-z-]+(?:, +[a-z-]+)*))", re.M)
# `known` are the words that name a command: one or two. An option with choices offers these; another option,
# and a word that is not known, leave the names of files to the shell.
_BASH = r"""_trainyard_words() {
    case $1 in
CASES
    esac
}
_trainyard() {
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} known= words= i
    for ((i = 1; i < COMP_CWORD && i < 3; i++)); do
        [ -n "$(_trainyard_words "${known:+$known }${COMP_WORDS[i]}")" ] || break
        known="${known:+$known }${COMP_WORDS[i]}"
    done
    if [ "$COMP_CWORD" -eq 1 ]; then words=$(_trainyard_words ''); elif [ -n "$known" ]; then
        words=$(_trainyard_words "$known $previous")
        [ -n "$words" ] || case $previous in
            --*) case $current in -*) words=$(_trainyard_words "$known") ;; esac ;;
            *) words=$(_trainyard_words "$known") ;;
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -o bashdefault -o default -F _trainyard trainyard
"""
# The same in fish, which offers options only after a dash.
_FISH = r"""function __trainyard_words
    switch "$argv"
CASES
    end
end
function __trainyard_offered
    set -l typed (commandline -opc)
    set -e typed[1]
    set -l known
    for word in $typed[1..2]
        test -n "$(__trainyard_words $known $word)"; or break
        set -a known $word
    end
    set -l previous
    set -q typed[1]; and set previous $typed[-1]
    set -l offered (__trainyard_words $known | string split ' ')
    if set -q typed[1]
        set -l choices (__trainyard_words $known $previous | string split ' ')
        if not set -q known[1]
            set offered
        else if test -n "$choices"; and string match -q -- '--*' $previous
            set offered $choices
        else if string match -q -- '--*' $previous; and not string match -q -- '-*' (commandline -ct)
            set offered
        end
    end
    if string match -q -- '-*' (commandline -ct)
        string match -- '-*' $offered
    else
        string match -v -- '-*' $offered
    end
end
complete -c trainyard -n 'test -n "$(__trainyard_offered)"' -f -a '(__trainyard_offered)'
"""
_ZSH = """(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }
autoload -U +X bashcompinit && bashcompinit
"""


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("shell", choices=SHELLS, help="the shell that reads the script")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)
    words = known_words()
    if args.shell == "fish":
        sys.stdout.write(fish_script(words))
    else:
        sys.stdout.write((_ZSH if args.shell == "zsh" else "") + bash_script(words))
    return ExitCode.DONE


def known_words() -> Words:
    """Return what can follow the words that were typed, read from the help of every command."""
    found: dict[str, tuple[str, ...]] = {"": tuple(dict.fromkeys(name.split()[0] for name in COMMANDS))}
    for name in COMMANDS:
        group, _, second = name.partition(" ")
        text = help_of(module_name(name))
        options = dict(_OPTION.findall(text)) | dict.fromkeys(_OTHER_NAME.findall(text), "")
        positional = _POSITIONAL.search(text)
        actions = () if not positional else re.split(r", *", positional[1] or positional[2])
        found[name] = (*found.get(name, ()), *actions, *options)
        found |= {f"{name} {flag}": tuple(choices.split(",")) for flag, choices in options.items() if choices}
        if second:
            found[group] = (*found.get(group, ()), second)
    return found


def help_of(module: str) -> str:
    """Return the help of a command."""
    with redirect_stdout(io.StringIO()) as text, suppress(SystemExit):
        import_module(f"trainyard.commands.{module}").main(["--help"])
    return text.getvalue()


def bash_script(words: Words) -> str:
    """Return the functions for bash, which zsh understands too."""
    lines = [f"        '{typed}') echo '{' '.join(following)}' ;;" for typed, following in words.items()]
    return _BASH.replace("CASES", "\n".join(lines))


def fish_script(words: Words) -> str:
    """Return the functions for fish, with the same words."""
    lines = [
        f"        case '{typed}'\n            echo '{' '.join(following)}'"
        for typed, following in words.items()
    ]
    return _FISH.replace("CASES", "\n".join(lines))
