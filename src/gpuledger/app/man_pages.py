"""Man pages in roff, from the parsers of the commands."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence

from gpuledger import __version__
from gpuledger.app.flags import CommandParser
from gpuledger.config.help_pages import HelpPage

_EXIT_STATUS = """\
.SH EXIT STATUS
0 after success, 1 after a failure, 2 after a wrong flag or setting.
"""
_FILES = {
    "/etc/gpuledger/config.yaml": "settings of the packaged service",
    "/var/lib/gpuledger, ~/.local/state/gpuledger": "the ledger",
}


def overview_page(about: Mapping[str, str]) -> str:
    """The page `gpuledger(1)`; `about` describes each command."""
    parts = [_heading("gpuledger", "who uses each GPU, for how long, and what it costs")]
    parts.append(".SH SYNOPSIS\n.B gpuledger\n[COMMAND] [FLAGS]\n")
    parts.append(
        ".SH DESCRIPTION\n"
        + _paragraphs(
            "gpuledger reads the GPUs of this machine, finds the owner of each process, and keeps a ledger "
            "of time, energy and money. It serves Prometheus metrics and a web page.\n\n"
            "Without a command it serves, unless a person starts it in a terminal: then it lists the "
            "commands."
        )
    )
    parts.append(".SH COMMANDS\n")
    parts += (_item(f"\\fBgpuledger\\-{name}\\fR(1)", text) for name, text in about.items())
    parts.append(
        ".SH CONFIGURATION\n"
        + _paragraphs(
            "Settings come from --config FILE (YAML), variables GPULEDGER_* and flags, in rising order of "
            "precedence. The page of each command lists its flags with keys and variables."
        )
    )
    parts.append(".SH FILES\n")
    parts += (_item(_escaped(path), text) for path, text in _FILES.items())
    return "".join(parts) + _EXIT_STATUS


def command_page(name: str, about: str, parser: CommandParser, others: Sequence[str]) -> str:
    """The page `gpuledger-NAME(1)`, with all flags but those of other exporters.

    `others` are all commands.
    """
    usage = (parser.usage or "").removeprefix(f"gpuledger {name}").strip()
    parts = [
        _heading(f"gpuledger-{name}", about),
        f".SH SYNOPSIS\n.B gpuledger {name}\n{_escaped(usage)}\n",
        ".SH DESCRIPTION\n" + _paragraphs(parser.description or about),
        ".SH OPTIONS\n",
        *_options(parser),
    ]
    if parser.epilog:
        parts += (".SH NOTES\n", *_literal(parser.epilog))
    parts.append(_EXIT_STATUS + ".SH SEE ALSO\n.BR gpuledger (1)")
    parts.append("".join(f",\n.BR gpuledger\\-{other} (1)" for other in others if other != name))
    return "".join(parts) + "\n"


def _options(parser: CommandParser) -> Iterator[str]:
    parser.set_help((HelpPage.COMMON, HelpPage.RARE), short=False)
    declared = {id(action) for action, *_ in parser.declared}
    for group in parser._action_groups:
        shown = [action for action in group._group_actions if action.help != argparse.SUPPRESS]
        if shown and id(shown[0]) in declared:
            yield f".SS {_escaped(group.title or '')}\n"
        yield from map(_option, shown)


def _option(action: argparse.Action) -> str:
    names = ", ".join(f"\\fB{_escaped(name)}\\fR" for name in action.option_strings)
    value = f" \\fI{_escaped(str(action.metavar))}\\fR" if action.nargs != 0 and action.metavar else ""
    return _item(names + value, (action.help or "").replace("%%", "%"))


def _heading(title: str, about: str) -> str:
    name = _escaped(title)
    title_line = f'.TH "{name.upper()}" 1 "" "gpuledger {__version__}" "gpuledger"'
    # Neither hyphenated nor justified: keys and variables are long.
    return f"{title_line}\n.nh\n.ad l\n.SH NAME\n{name} \\- {_escaped(about)}\n"


def _item(tag: str, text: str) -> str:
    return f".TP\n{tag}\n{_escaped(text)}\n"


def _paragraphs(text: str) -> str:
    blocks = (" ".join(block.split()) for block in text.strip().split("\n\n"))
    return "\n.PP\n".join(map(_escaped, blocks)) + "\n"


def _literal(text: str) -> Iterator[str]:
    yield ".nf\n"
    yield from (f"{_escaped(line)}\n" for line in text.strip("\n").splitlines())
    yield ".fi\n"


def _escaped(text: str) -> str:
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    escaped = re.sub(r"[^\x00-\x7f]", lambda sign: f"\\[u{ord(sign[0]):04X}]", escaped)
    return f"\\&{escaped}" if escaped.startswith(".") else escaped
