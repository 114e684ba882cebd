"""The packaged service lets each user of the machine read own rows, and nothing more."""

from __future__ import annotations

from pathlib import Path

from gpuledger.config.access import SOCKET, AccessSettings
from gpuledger.config.commands import ALL_GROUPS, NODE_GROUPS
from gpuledger.config.load import load_values
from gpuledger.http.settings import HttpSettings
from gpuledger.model.settings import build_settings

DEPLOY = Path(__file__).parents[3] / "deploy"


def test_the_settings_of_the_package_open_the_socket_and_no_port() -> None:
    values = load_values(NODE_GROUPS.values(), {}, {}, DEPLOY / "packages/config.yaml", ALL_GROUPS)
    assert build_settings(AccessSettings, values) == AccessSettings(SOCKET, (), ())
    assert [str(one.address) for one in build_settings(HttpSettings, values).listen_address] == [
        "127.0.0.1:9400"
    ]


def test_the_unit_makes_a_directory_that_users_can_search_and_one_that_they_cannot() -> None:
    lines = (DEPLOY / "systemd/gpuledger.service").read_text().splitlines()
    assert {"RuntimeDirectory=gpuledger", "RuntimeDirectoryMode=0755", "StateDirectoryMode=0700"} <= set(
        lines
    )
