"""What the pods of a resource run, as far as the programs can say beforehand whether they would take it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

# Of what a program is given, the part that it would refuse.
Part = Literal["arguments", "environment", "configuration", "dialect", "collectors", "source", "devices"]


@dataclass(frozen=True, slots=True)
class Run:
    """One program as a pod runs it: its arguments behind the command's name, variables with their values, and
    what its configuration file says. `files` are those that it names, by their paths in the pod; the text of
    one that nobody knows here, as a Secret's, is a word that may stand for it.
    """

    arguments: Sequence[str]
    environment: Mapping[str, str]
    configuration: Mapping[str, Any]
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Complaint:
    """What a program has against the way it is run, in the line that it would end with."""

    part: Part
    text: str


Check = Callable[[Run], Complaint | None]


def takes_all(_run: Run) -> None:
    """Nothing is looked at."""
