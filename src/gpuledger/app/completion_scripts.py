"""Completion scripts of bash, zsh and fish, from the shapes of all commands."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from gpuledger.app.command_shapes import CommandShape, FlagShape

Commands = Sequence[CommandShape]


def _quoted(text: str) -> str:
    """The text as one word of bash and zsh."""
    return "'" + text.replace("'", "'\\''") + "'"


# Uses the line itself: bash splits words at = and :, which are in flags and scenarios.
_BASH = r"""# Completion of gpuledger for bash.
# A name with a space is one reply: `compopt` makes bash quote it.
_gpuledger_names() {
  compopt -o filenames 2> /dev/null
  mapfile -t COMPREPLY < <(compgen "$1" -- "$2")
}
_gpuledger() {
  local line=${COMP_LINE:0:COMP_POINT} current= previous= command= flag= list= reply prefix
  local -a typed
  # Without -r: a space after a backslash is a part of the word.
  read -a typed <<< "$line"
  [[ $line == *[[:space:]] && $line != *'\ ' ]] || { current=${typed[-1]}; unset 'typed[-1]'; }
  previous=${typed[-1]}
  COMPREPLY=()
  if (( ${#typed[@]} <= 1 )) && [[ $current != -* ]]; then
    COMPREPLY=($(compgen -W 'help @NAMES@' -- "$current"))
    return
  fi
  command=${typed[1]:-serve}
  [[ $command == -* ]] && command=serve
  if [[ $command == help ]]; then
    COMPREPLY=($(compgen -W '@NAMES@' -- "$current"))
    return
  fi
  local flags= takes= words= lists= first= files=
  case $command in
@COMMANDS@
  esac
  # `--flag value` or `--flag=value`.
  if [[ $current == --*=* ]]; then
    flag=${current%%=*} prefix=$flag= current=${current#*=}
  elif [[ $previous == -* && " $takes " == *" $previous "* ]]; then
    flag=$previous
  fi
  case $command,$flag in
@VALUES@
  *,)
    if [[ $current == -* ]]; then
      COMPREPLY=($(compgen -W "$flags" -- "$current"))
    elif [[ -n $first && ${#typed[@]} -eq 2 ]]; then
      COMPREPLY=($(compgen -W "$first" -- "$current"))
    elif [[ -n $files ]]; then
      _gpuledger_names -f "$current"
    fi
    return ;;
  esac
  case $words in
  @files) _gpuledger_names -f "$current" ;;
  @directories) _gpuledger_names -d "$current" ;;
  *)
    [[ -n $lists && $current == *,* ]] && list=${current%,*},
    COMPREPLY=($(compgen -P "$list" -W "$words" -- "${current#"$list"}"))
    # bash replaces only what follows the last colon.
    if [[ $current == *:* && $COMP_WORDBREAKS == *:* ]]; then
      prefix=${current%"${current##*:}"}
      COMPREPLY=("${COMPREPLY[@]#"$prefix"}")
    fi ;;
  esac
}
complete -F _gpuledger gpuledger
"""


def bash_completion(commands: Commands) -> str:
    """The script for bash, without the package bash-completion."""
    return _filled(_BASH, commands, _bash_command, _bash_values)


def _filled(
    template: str,
    commands: Commands,
    *parts: Callable[[CommandShape], Iterator[str]],
) -> str:
    names = " ".join(command.name for command in commands)
    script = template.replace("@NAMES@", names)
    for mark, part in zip(("@COMMANDS@", "@VALUES@"), parts, strict=False):
        script = script.replace(mark, "\n".join(line for command in commands for line in part(command)))
    return script


def _bash_command(command: CommandShape) -> Iterator[str]:
    flags = " ".join(name for flag in command.flags for name in flag.names)
    takes = " ".join(name for flag in command.flags if flag.metavar for name in flag.names)
    files = " files=1" if command.takes_file else ""
    yield f"  {command.name}) flags='{flags}' takes='{takes}' first='{' '.join(command.words)}'{files} ;;"


def _bash_values(command: CommandShape) -> Iterator[str]:
    for flag in command.flags:
        if flag.metavar:
            words = "@files" if flag.takes_file else "@directories" if flag.takes_directory else ""
            patterns = "|".join(f"{command.name},{name}" for name in flag.names)
            lists = " lists=1" if flag.is_list else ""
            yield f"  {patterns}) words={_quoted(words or ' '.join(flag.words))}{lists} ;;"


_ZSH = r"""#compdef gpuledger
# Completion of gpuledger for zsh.
_gpuledger() {
  local -a commands specs
  commands=(
@COMMANDS@
    'help:show the help of a command'
  )
  if (( CURRENT == 2 )) && [[ ${words[2]} != -* ]]; then
    _describe -t commands command commands
    return
  fi
  local command=${words[2]}
  [[ $command == -* ]] && command=serve || { shift words; (( CURRENT-- )); }
  case $command in
@VALUES@
  help) specs=('1:command:(@NAMES@)') ;;
  *) return 1 ;;
  esac
  _arguments $specs
}
if [[ $funcstack[1] == _gpuledger ]]; then _gpuledger "$@"; else compdef _gpuledger gpuledger; fi
"""


def zsh_completion(commands: Commands) -> str:
    """The script for zsh: to source after `compinit`, or as a file `_gpuledger` in `$fpath`."""
    return _filled(_ZSH, commands, _zsh_command, _zsh_specs)


def _zsh_command(command: CommandShape) -> Iterator[str]:
    yield f"    {_quoted(f'{command.name}:{command.about}')}"


def _zsh_specs(command: CommandShape) -> Iterator[str]:
    yield f"  {command.name}) specs=("
    for flag in command.flags:
        about = re.sub(r"([\[\]:\\])", r"\\\1", _first_sentence(flag.help))
        for name in flag.names:
            # `--flag value` and `--flag=value`, any number of times.
            assigned = "=" if flag.metavar and name.startswith("--") else ""
            value = f":{flag.metavar.replace(':', ' ')}:{_zsh_values(flag)}" if flag.metavar else ""
            yield f"    {_quoted(f'*{name}{assigned}[{about}]{value}')}"
    if command.words:
        yield f"    {_quoted('1:action:(' + ' '.join(command.words) + ')')}"
    if command.takes_file:
        yield "    '*:file:_files'"
    yield "  ) ;;"


def _zsh_values(flag: FlagShape) -> str:
    if flag.takes_file:
        return "_files"
    if flag.takes_directory:
        return "_files -/"
    words = " ".join(word.replace(":", "\\:") for word in flag.words)
    if flag.is_list:
        return f"_sequence compadd - {words}"
    return f"({words})" if words else " "


def fish_completion(commands: Commands) -> str:
    """The script for fish."""
    lines = ["# Completion of gpuledger for fish.", "complete -c gpuledger -f"]
    names = " ".join(command.name for command in commands)
    first = "not __fish_seen_subcommand_from help " + names
    start = f"complete -c gpuledger -n {_fish(first)} -a"
    lines += (f"{start} {command.name} -d {_fish(command.about)}" for command in commands)
    lines.append(f"{start} help -d 'show the help of a command'")
    lines.append(f"complete -c gpuledger -n '__fish_seen_subcommand_from help' -a {_fish(names)}")
    for command in commands:
        start = f"complete -c gpuledger -n '__fish_seen_subcommand_from {command.name}'"
        if command.words:
            words = " ".join(command.words)
            seen = f"__fish_seen_subcommand_from {command.name}; and not __fish_seen_subcommand_from {words}"
            lines.append(f"complete -c gpuledger -n '{seen}' -a '{words}'")
        if command.takes_file:
            words = " ".join(command.words or (command.name,))
            seen = f"__fish_seen_subcommand_from {command.name}; and __fish_seen_subcommand_from {words}"
            lines.append(f"complete -c gpuledger -n '{seen}' -F")
        lines += (f"{start} {_fish_flag(flag)}" for flag in command.flags)
    return "\n".join(lines) + "\n"


def _fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_FISH_NAMES: Mapping[bool, str] = {True: "-l", False: "-s"}


def _fish_flag(flag: FlagShape) -> str:
    names = " ".join(f"{_FISH_NAMES[name.startswith('--')]} {name.lstrip('-')}" for name in flag.names)
    value = ""
    if flag.takes_file:
        value = " -r -F"
    elif flag.takes_directory:
        value = " -x -a '(__fish_complete_directories)'"
    elif flag.words:
        words = _fish(" ".join(flag.words))
        value = f" -x -a '(__fish_complete_list , \"echo {' '.join(flag.words)} | string split \\' \\'\")'"
        value = value if flag.is_list else f" -x -a {words}"
    elif flag.metavar:
        value = " -x"
    return f"{names}{value} -d {_fish(_first_sentence(flag.help))}"


def _first_sentence(text: str) -> str:
    """The part of a help that fits a line beside the flag."""
    return re.split(r"[;(:]", text)[0].strip()


SCRIPTS: Mapping[str, Callable[[Commands], str]] = {
    "bash": bash_completion,
    "zsh": zsh_completion,
    "fish": fish_completion,
}
