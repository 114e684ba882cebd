"""The text of a command line: one safe line, in which likely secrets are hidden."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from gpuledger.terminal.snapshot import printable_name

HIDDEN: Final = "***"
# Characters: of the line, and of an argument that is searched for secrets.
_LONGEST: Final = 4096
_LONGEST_ARGUMENT: Final = 8192
_SECRET: Final = (
    r"(?:pass(?:wd|word|phrase|code)?|pwd|secrets?|token|credentials?|api[-_]?keys?|private[-_]?keys?"
    r"|access[-_]?keys?|secret[-_]?keys?|auth(?:orization|[-_]?key)?|bearer|cookies?)"
)
# A whole word of a name: `--db-password`, `HF_TOKEN`, `hfToken`; neither `--tokenizer` nor `--passes`. Names
# such as `PGPASSWORD` and `--authtoken` have no separator.
_NAME: Final = (
    rf"(?:(?:[\w.-]*[-_.]|[\w.-]*?[a-z](?=[A-Z]))?(?i:{_SECRET})"
    r"|[\w.-]*(?i:passw(?:or)?d|authtoken|accesstoken|apikey))"
)
_OPTION: Final = re.compile(rf"--?{_NAME}")
_WHOLE_ASSIGNMENT: Final = re.compile(rf"((?:--?|-D)?{_NAME}=).+", re.DOTALL)
_OPTION_IN_TEXT: Final = re.compile(rf"((?:^|\s)--?{_NAME}\s+)(?!-)\S+")
_ASSIGNMENT: Final = re.compile(
    rf"((?:^|[\s,;?&{{\"'(])(?:--?)?{_NAME}[\"']?\s*[=:]\s*[\"']?)([^\s,;&\"'}})]+)"
)
_HEADER: Final = re.compile(r"(?i:\b(authorization|cookie|x-[\w-]{0,40}(?:key|token))\s*:\s*).+")
_BEARER: Final = re.compile(r"(?i:\b(bearer|basic)\s+)\S+")
_URL_LOGIN: Final = re.compile(r"(?<![a-z0-9+.-])([a-z][a-z0-9+.-]*://)[^\s/@]+@", re.IGNORECASE)
# Tokens with a known beginning: Hugging Face, OpenAI, GitHub, GitLab, Slack, NGC, AWS; JSON Web Tokens.
_TOKEN: Final = re.compile(
    r"\b(?:hf_|sk-|gh[opsur]_|github_pat_|glpat-|xox[abps]-|nvapi-|AKIA|eyJ[\w-]{4,400}\.eyJ)[\w.-]{8,}"
)
# Options of one letter that take a password: programs that take it are few, and known.
_SHORT_PASSWORD: Final = {"mysql": "-p", "mysqldump": "-p", "sshpass": "-p", "redis-cli": "-a", "curl": "-u"}
# Long ones of which only the name does not say so.
_LONG_PASSWORD: Final = {"curl": ("--user", "--proxy-user")}
# The same in a text for a shell (`bash -c 'mysql -pSECRET db'`), up to the end of that command.
_IN_SHELL: Final = tuple(
    re.compile(rf"(\b{program}\s(?:[^|;&\n]{{0,400}}?\s)?{option}{gap}[\"']?)[^\s\"'|;&]+")
    for program, option, gap in (
        *((program, option, r"\s*") for program, option in _SHORT_PASSWORD.items()),
        *(
            (program, option, r"[\s=]\s*")
            for program, options in _LONG_PASSWORD.items()
            for option in options
        ),
    )
)
# In the shell these need no quotes.
_PLAIN_WORD: Final = re.compile(r"[\w@%+=:,./~*?-]+", re.ASCII)


def format_command_line(arguments: Iterable[str]) -> str:
    """The arguments as one printable line, the program without its directory; empty without arguments.

    Arguments with blanks are in quotes. Values that look like secrets are `***`.
    """
    words = list(arguments)
    if not words:
        return ""
    program = words[0]
    # A program that writes its own title puts all of it into the first argument.
    if len(words) > 1 or not re.search(r"\s", program):
        program = program.rstrip("/").rsplit("/", 1)[-1] or program
    shown = [_hide_parts(program), *map(_quote, hide_secrets(words[1:], program))]
    return printable_name(" ".join(shown), _LONGEST)


def hide_secrets(arguments: Iterable[str], program: str = "") -> Iterator[str]:
    """The arguments of a program, without the values that look like secrets."""
    short = _SHORT_PASSWORD.get(program, "")
    passing = {short, *_LONG_PASSWORD.get(program, ())} - {""}
    hide_next = False
    for argument in arguments:
        if hide_next and not (argument.startswith("--") or argument in ("", "-")):
            yield HIDDEN
        elif short and argument.startswith(short) and len(argument) > len(short):
            yield short + HIDDEN
        else:
            yield _hide_parts(argument)
        hide_next = argument in passing or bool(_OPTION.fullmatch(argument))


def _hide_parts(text: str) -> str:
    text = text[:_LONGEST_ARGUMENT]
    if found := _WHOLE_ASSIGNMENT.fullmatch(text):
        return found[1] + HIDDEN
    text = _HEADER.sub(lambda found: found[0][: found[0].index(":") + 1] + f" {HIDDEN}", text)
    text = _BEARER.sub(rf"\1 {HIDDEN}", text)
    text = _URL_LOGIN.sub(rf"\1{HIDDEN}@", text)
    for pattern in (_ASSIGNMENT, _OPTION_IN_TEXT, *_IN_SHELL):
        text = pattern.sub(rf"\1{HIDDEN}", text)
    return _TOKEN.sub(HIDDEN, text)


def _quote(argument: str) -> str:
    if _PLAIN_WORD.fullmatch(argument):
        return argument
    return f"'{argument}'" if "'" not in argument else '"' + re.sub(r'([\\"$`])', r"\\\1", argument) + '"'
