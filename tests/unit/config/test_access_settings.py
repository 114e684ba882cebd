"""The settings of access: names, and what is refused."""

from __future__ import annotations

import pytest

from gpuledger.config.access import AccessSettings, user_of_name
from gpuledger.config.load import load_values
from gpuledger.model.errors import UsageError
from gpuledger.model.settings import build_settings


def settings(**flags: str) -> AccessSettings:
    given = {f"access.{name}": [text] for name, text in flags.items()}
    return build_settings(AccessSettings, load_values([AccessSettings], given, {}, None))


def test_by_default_who_can_connect_reads_everything() -> None:
    assert settings() == AccessSettings("all", (), ())


def test_a_name_over_http_is_that_of_a_user_or_stands_for_one() -> None:
    found = settings(users="ann, dan@example.com=dan, a=b=eve")
    assert user_of_name(found, "ann") == "ann"
    assert user_of_name(found, "dan@example.com") == "dan"
    assert user_of_name(found, "a=b") == "eve"
    assert user_of_name(found, "dan") is None


@pytest.mark.parametrize("users", ["1001", "ann=1001", "=ann", "ann=", "@wheel", "ann=@wheel"])
def test_a_number_or_a_group_is_no_user_over_http(users: str) -> None:
    with pytest.raises(UsageError, match="expected a user's name"):
        settings(users=users)


@pytest.mark.parametrize("admins", ["@", "@@wheel", "wheel@"])
def test_an_administrator_is_a_user_or_a_group(admins: str) -> None:
    with pytest.raises(UsageError, match="expected a user's name, or @GROUP"):
        settings(admins=admins)


def test_administrators_are_listed() -> None:
    assert settings(admins="ann,@wheel,1001").admins == ("ann", "@wheel", "1001")
