"""What a user sets about the page that people look at."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.model.settings import choice, setting


@dataclass(frozen=True, slots=True)
class WebSettings:
    """What is shown at `/`."""

    page: str = setting(
        "web.page",
        choice("landing", "off"),
        "landing",
        "page at /: landing (state of the GPUs and links, no names of users or processes) or off",
        metavar="landing|off",
    )
