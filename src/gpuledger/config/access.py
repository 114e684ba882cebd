"""The settings of access: who reads the rows of whom, over the control socket and over HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

from gpuledger.model.settings import ReloadPolicy, choice, comma_separated, setting, text

# Who reads what: everything for those who can connect; own rows over the socket; and over HTTP, too.
ALL, SOCKET, OWN = "all", "socket", "own"

_NAMES: Final = "a user's name, or NAME=USER for a client's NAME that is USER on this machine"


def _user(value: object) -> tuple[str, str]:
    """The name over HTTP, and the user of this machine."""
    name, equals, user = text(value).strip().rpartition("=")
    if not equals:
        name = user
    if not name or not user or user.isdigit() or user.startswith("@"):
        raise ValueError(f"expected {_NAMES}; not a number")
    return name, user


def _admin(value: object) -> str:
    name = text(value).strip()
    if name.strip("@") != name.removeprefix("@") or not name.removeprefix("@"):
        raise ValueError("expected a user's name, or @GROUP")
    return name


@dataclass(frozen=True)
class AccessSettings:
    """Who may read which rows of the ledger."""

    reload: ClassVar[ReloadPolicy] = ReloadPolicy(restart=("access.mode",))

    mode: str = setting(
        "access.mode",
        choice(ALL, SOCKET, OWN),
        ALL,
        "all: who can connect reads everything (the control socket admits only root and the user of serve); "
        "socket: each user of this machine reads own rows over the control socket; own: the same over HTTP, "
        "for users of the web config that access.users lists, and nothing without a login",
        flags=("--access",),
    )
    users: tuple[tuple[str, str], ...] = setting(
        "access.users",
        comma_separated(_user),
        (),
        f"with access.mode own: who reads own rows over HTTP; {_NAMES}",
    )
    admins: tuple[str, ...] = setting(
        "access.admins",
        comma_separated(_admin),
        (),
        "who reads everything, beside root and the user of serve: users and @groups of this machine; with "
        "access.mode own also these users over HTTP, such as that of the scraper",
    )


def user_of_name(settings: AccessSettings, name: str) -> str | None:
    """The user of this machine that has this name over HTTP; None if it is not listed."""
    found: Any = dict(settings.users).get(name)
    return None if found is None else str(found)
