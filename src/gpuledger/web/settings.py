"""What a user sets about the page that people look at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gpuledger.model.settings import Reload, choice, setting


@dataclass(frozen=True, slots=True)
class WebSettings:
    """What is shown at `/`."""

    reload: ClassVar[Reload] = Reload()

    page: str = setting(
        "web.page",
        choice("landing", "off"),
        "landing",
        "page at /: landing (state of the GPUs and links, no names of users or processes) or off",
        metavar="landing|off",
    )
