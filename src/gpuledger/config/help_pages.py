"""The pages of the help of a command."""

from __future__ import annotations

from enum import Enum


class HelpPage(Enum):
    """The option of a command that lists a group of settings."""

    COMMON = "--help"
    RARE = "--help-all"
    COMPATIBILITY = "--help-compat"
