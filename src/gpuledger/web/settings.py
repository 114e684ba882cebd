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
        choice("full", "landing", "off"),
        "full",
        "page at / and the API below /api: full; landing (state of the GPUs and links, no names of users or "
        "processes, no API); or off",
        metavar="full|landing|off",
    )
