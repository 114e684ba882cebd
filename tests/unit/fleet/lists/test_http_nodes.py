"""Lists of nodes from an HTTP server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gpuledger.fleet.lists.configured_lists import configured_lists
from gpuledger.fleet.lists.http_nodes import HttpNodes
from gpuledger.fleet.lists.node_list import AddressDefaults, UnreadableList
from gpuledger.fleet.node_address import NodeAddress
from gpuledger.fleet.node_client import NodeClient, NodeCredentials, NodeRequestFailed
from gpuledger.fleet.settings import NodeListSettings
from gpuledger.http.client_access import ClientAccessSettings
from gpuledger.http.client_messages import basic_authorization
from gpuledger.model.errors import UsageError
from unit.fleet.support import ScriptedNodes, answer

OPEN = NodeCredentials(ClientAccessSettings())
SERVER = "https://cmdb:443"


def nodes_of(script: ScriptedNodes, url: str = "https://ann:x@cmdb/gpus?lab=1") -> HttpNodes:
    return HttpNodes(url, AddressDefaults(), lambda address: script.client(address, OPEN, 5.0))


def test_the_list_is_that_of_http_sd_and_the_login_is_in_no_name() -> None:
    script = ScriptedNodes({SERVER: answer([{"targets": ["gpu-1", "gpu-2:9500"]}])})
    nodes = nodes_of(script)
    found = asyncio.run(nodes.read_nodes())
    assert [one.url for one in found] == ["http://gpu-1:9400", "http://gpu-2:9500"]
    assert (script.requests[0][1], nodes.name) == ("/gpus?lab=1", f"{SERVER}/gpus")


@pytest.mark.parametrize(("url", "login"), [("https://cmdb/gpus", ""), ("https://ann:x@cmdb/gpus", "ann:x")])
def test_the_server_of_a_list_does_not_get_the_login_of_the_nodes(
    tmp_path: Path, url: str, login: str
) -> None:
    password = tmp_path / "password"
    password.write_text("secret")
    shared = NodeCredentials(ClientAccessSettings(user="fleet", password_file=str(password)))
    made: list[NodeClient] = []

    def client(address: NodeAddress) -> NodeClient:
        made.append(NodeClient(address, shared, 5.0))
        return made[0]

    HttpNodes(url, AddressDefaults(), client)
    sent = made[0].encode_request("/gpus").decode().splitlines()
    expected = [f"Authorization: {basic_authorization(login)}"] if login else []
    assert [one for one in sent if one.startswith("Authorization")] == expected
    node = NodeClient(NodeAddress("http", "gpu-1", 9400), shared, 5.0)
    assert basic_authorization("fleet:secret") in node.encode_request("/").decode()


@pytest.mark.parametrize(
    "found", [NodeRequestFailed("the node answered 500", "refused"), answer({}), answer(7)]
)
def test_a_server_that_fails_is_an_error_that_names_the_url(found: object) -> None:
    nodes = nodes_of(ScriptedNodes({SERVER: found}))  # type: ignore[dict-item]
    with pytest.raises((UnreadableList, UsageError), match=f"{SERVER}/gpus"):
        asyncio.run(nodes.read_nodes())


def test_a_list_that_needs_a_login_says_where_to_write_it() -> None:
    nodes = nodes_of(ScriptedNodes({SERVER: NodeRequestFailed("check --user and --password-file", "login")}))
    with pytest.raises(UnreadableList, match=r"its URL needs a valid login \(https://USER:PASSWORD@"):
        asyncio.run(nodes.read_nodes())


def client_of(address: NodeAddress) -> NodeClient:
    return NodeClient(address, OPEN, 5.0)


def test_every_setting_is_a_list(tmp_path: Path) -> None:
    file = tmp_path / "nodes"
    file.write_text("gpu-1\n")
    settings = NodeListSettings(
        nodes=("a",), file=str(file), http_sd="http://x/y", dns_srv="_a._tcp.b", slurm=True, port=9500
    )
    names = [one.name for one in configured_lists(settings, client_of, lambda: None)]
    assert names == ["--node", str(file), "http://x:80/y", "DNS SRV _a._tcp.b", "Slurm (sinfo)"]


def test_a_fleet_without_a_list_says_how_to_give_one() -> None:
    with pytest.raises(UsageError, match="give --node gpu-1"):
        configured_lists(NodeListSettings(), client_of, lambda: None)


@pytest.mark.parametrize("content", [None, "ftp://x\n"])
def test_a_file_that_cannot_be_used_is_refused_at_the_start(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "nodes"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UsageError, match=str(file)):
        configured_lists(NodeListSettings(file=str(file)), client_of, lambda: None)


def test_pods_need_an_api_server() -> None:
    with pytest.raises(UsageError, match="needs an API server"):
        configured_lists(NodeListSettings(pods="app=x"), client_of, lambda: None)
