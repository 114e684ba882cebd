"""Checks of the input of a pod's program, which the program's own parser does before anything is applied."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

# The part of its input that a program would refuse.
Part = Literal["arguments", "environment", "configuration", "dialect", "collectors", "source", "devices"]


@dataclass(frozen=True, slots=True)
class ProgramRun:
    """The input of a program in a pod: arguments after the command's name, environment, configuration file.

    `command` is that of an exporter: serve or collect.

    `files` are the files that these name, by their paths in the pod. Unknown content, as of a Secret, is
    replaced by a placeholder.
    """

    arguments: Sequence[str]
    environment: Mapping[str, str]
    configuration: Mapping[str, Any]
    files: Mapping[str, str] = field(default_factory=dict)
    command: str = "serve"


@dataclass(frozen=True, slots=True)
class ProgramProblem:
    """An error in the input of a program: the part that is wrong, and the error line of the program."""

    part: Part
    text: str


ProgramCheck = Callable[[ProgramRun], Sequence[ProgramProblem]]


def accept_every_run(_run: ProgramRun) -> Sequence[ProgramProblem]:
    """Check nothing."""
    return ()
