"""The fleet: lists that change, nodes that are listed twice, and what clients get of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from builders import FakeClock
from gpuledger.fleet.lists.node_list import InvalidEntries
from gpuledger.fleet.membership import Membership
from gpuledger.model.errors import GpuledgerError, UsageError
from unit.fleet.support import (
    ListedNodes,
    ScriptedNodes,
    a_fleet,
    address,
    answer,
    body,
    json_of,
    read_all,
)
from unit.terminal.support import NOW, device, uuid

REAL = {"simulated": False, "name": "nvml"}


def node_body(name: str, *indexes: str, **changes: Any) -> dict[str, Any]:
    return body(name, *(device(index) for index in indexes), source=REAL, **changes)


def test_one_broken_node_costs_only_its_own_row() -> None:
    nodes = ScriptedNodes({"http://a:9400": node_body("a", "0", "1")})
    fleet, _ = a_fleet(nodes, ListedNodes(address("a"), address("b")))
    asyncio.run(read_all(fleet))
    found = json_of(fleet)
    assert [gpu["state"] for gpu in found["a"]["gpus"]] == ["free", "free"]
    assert (found["b"]["up"], found["b"]["gpus"], found["b"]["since"]) == (False, [], NOW)
    assert "connection refused" in found["b"]["reason"]


def test_gpus_of_a_node_that_is_gone_are_unknown_never_free() -> None:
    nodes = ScriptedNodes({"http://a:9400": node_body("a", "0")})
    fleet, clock = a_fleet(nodes, ListedNodes(address("a")))
    asyncio.run(read_all(fleet))
    nodes.answers.clear()
    clock.advance(60)
    asyncio.run(read_all(fleet))
    (gpu,) = json_of(fleet)["a"]["gpus"]
    assert (gpu["state"], gpu["free_now"], gpu["owners"], gpu["memory_used_bytes"]) == (
        "unknown",
        False,
        [],
        None,
    )
    assert gpu["memory_total_bytes"] is not None


def test_clients_get_only_what_changed() -> None:
    nodes = ScriptedNodes({f"http://{name}:9400": node_body(name, number) for name, number in ("a0", "b1")})
    fleet, _ = a_fleet(nodes, ListedNodes(address("a"), address("b")))
    nodes.answers = {"http://a:9400": node_body("a", "0"), "http://b:9400": node_body("b", "1")}
    asyncio.run(read_all(fleet))
    seen = fleet.revision
    assert len(json_of(fleet)) == 2
    asyncio.run(read_all(fleet))
    assert (fleet.revision, json_of(fleet, seen)) == (seen, {})
    nodes.answers["http://b:9400"] = body("b", device("1", state="active"), source=REAL)
    asyncio.run(read_all(fleet))
    assert list(json_of(fleet, seen)) == ["b"]


def test_noise_that_nobody_sees_is_no_change() -> None:
    def with_power(watts: float, used: int) -> dict[str, Any]:
        return body(
            "a", device("0", power_watts=watts, memory_used_bytes=used), source=REAL, unix=NOW + watts / 99
        )

    nodes = ScriptedNodes({"http://a:9400": with_power(70.1, 1000)})
    fleet, _ = a_fleet(nodes, ListedNodes(address("a")))
    asyncio.run(read_all(fleet))
    seen = fleet.revision
    nodes.answers["http://a:9400"] = with_power(70.4, 2000)
    asyncio.run(read_all(fleet))
    assert fleet.revision == seen


def test_a_list_that_shrinks_ends_its_nodes_and_one_that_grows_begins_them() -> None:
    listed = ListedNodes(address("a"), address("b"))
    nodes = ScriptedNodes()
    fleet, _ = a_fleet(nodes, listed)
    asyncio.run(fleet.refresh())
    first = fleet.find_node("http://a:9400")
    listed.addresses = [address("c"), address("a")]
    before = fleet.revision
    asyncio.run(fleet.refresh())
    assert fleet.keys == ["http://c:9400", "http://a:9400"]
    assert fleet.find_node("http://a:9400") is first
    assert "http://b:9400" in nodes.closed
    assert fleet.revision > before


def test_a_node_with_another_login_or_name_begins_again() -> None:
    listed = ListedNodes(address("a", login="ann:x"))
    fleet, _ = a_fleet(ScriptedNodes(), listed)
    asyncio.run(fleet.refresh())
    first = fleet.nodes[0]
    listed.addresses = [address("a", login="ann:y")]
    asyncio.run(fleet.refresh())
    assert fleet.nodes[0] is not first


def test_a_list_that_cannot_be_read_keeps_its_last_nodes_and_says_since_when() -> None:
    listed, clock = ListedNodes(address("a")), FakeClock(NOW)
    membership = Membership([listed, ListedNodes(address("b"))], clock)
    assert len(asyncio.run(membership.refresh())) == 2
    listed.error = GpuledgerError("no such file")
    for _ in range(2):
        clock.advance(30)
        assert len(asyncio.run(membership.refresh())) == 2
    state = membership.states[0]
    assert (state.error, state.since, len(state.nodes)) == ("no such file", NOW + 30, 1)
    listed.error = None
    asyncio.run(membership.refresh())
    assert (membership.states[0].error, membership.states[0].since) == ("", None)


def test_a_wrong_entry_is_reported_and_the_other_nodes_of_its_list_are_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    listed, clock = ListedNodes(address("a")), FakeClock(NOW)
    membership = Membership([listed], clock)
    asyncio.run(membership.refresh())
    listed.error = InvalidEntries([address("b")], [UsageError("nodes, line 2: no URL")])
    for _ in range(2):
        assert list(asyncio.run(membership.refresh())) == ["http://b:9400"]
    state = membership.states[0]
    assert (state.error, state.since) == ("nodes, line 2: no URL", None)
    assert [record.getMessage() for record in caplog.records] == [
        "nodes, line 2: no URL; the other nodes of the list (1) are read"
    ]
    # Without any node, the last ones are kept.
    listed.error = InvalidEntries([], [UsageError("nodes, line 1: no URL")])
    clock.advance(30)
    assert list(asyncio.run(membership.refresh())) == ["http://b:9400"]
    assert (state.error, state.since) == ("nodes, line 1: no URL", NOW + 30)


def test_a_surprise_in_one_list_does_not_cost_the_others() -> None:
    listed = ListedNodes()
    listed.error = ZeroDivisionError()
    membership = Membership([listed, ListedNodes(address("b"))], FakeClock(NOW))
    assert list(asyncio.run(membership.refresh())) == ["http://b:9400"]
    assert "ZeroDivisionError" in membership.states[0].error


SAID = {"login": "fleet:secret", "name": "big", "page": "https://lab/big"}


@pytest.mark.parametrize("split", range(1, 7))
@pytest.mark.parametrize("swap", [False, True])
def test_an_address_of_two_lists_counts_once_with_all_that_they_say(split: int, swap: bool) -> None:
    parts = [{key: SAID[key] for at, key in enumerate(SAID) if (split >> at & 1) != rest} for rest in (0, 1)]
    lists = [ListedNodes(address("a", **part)) for part in (parts[::-1] if swap else parts)]
    found = asyncio.run(Membership(lists, FakeClock(NOW)).refresh())
    assert list(found.values()) == [address("a", **SAID)]


def test_of_two_lists_that_name_an_address_the_first_counts() -> None:
    lists = [ListedNodes(address("a", name=name)) for name in ("one", "two")]
    (found,) = asyncio.run(Membership(lists, FakeClock(NOW)).refresh()).values()
    assert found.name == "one"


def test_two_addresses_of_one_program_count_once() -> None:
    same = answer(node_body("a", "0", "1"), 'W/"18c-7"')
    nodes = ScriptedNodes({"http://a:9400": same, "http://10.0.0.1:9400": same})
    fleet, _ = a_fleet(nodes, ListedNodes(address("a"), address("10.0.0.1")))
    asyncio.run(read_all(fleet))
    found = json_of(fleet)
    assert [len(found[host]["gpus"]) for host in ("a", "10.0.0.1")] == [2, 0]
    assert found["10.0.0.1"]["counted_elsewhere"] == 2
    assert fleet.listed_twice == {"http://10.0.0.1:9400"}


def test_two_programs_on_one_machine_share_its_gpus() -> None:
    nodes = ScriptedNodes(
        {
            "http://a:9400": answer(node_body("a", "0", "1"), 'W/"18c-7"'),
            "http://b:9400": answer(node_body("b", "1", "2"), 'W/"99-7"'),
        }
    )
    fleet, _ = a_fleet(nodes, ListedNodes(address("a"), address("b")))
    asyncio.run(read_all(fleet))
    found = json_of(fleet)
    assert [gpu["uuid"] for gpu in found["b"]["gpus"]] == [uuid("2")]
    # The other one counts when the first is gone.
    nodes.answers.pop("http://a:9400")
    asyncio.run(read_all(fleet))
    found = json_of(fleet)
    assert [len(found[host]["gpus"]) for host in "ab"] == [1, 2]


def test_simulated_nodes_with_equal_gpus_are_different_nodes() -> None:
    def simulated(run: str) -> Any:
        return answer(body("host", device("0"), source={"simulated": True}), f'W/"{run}-7"')

    nodes = ScriptedNodes({"http://a:9400": simulated("1"), "http://b:9400": simulated("2")})
    fleet, _ = a_fleet(nodes, ListedNodes(address("a"), address("b")))
    asyncio.run(read_all(fleet))
    assert [len(found["gpus"]) for found in json_of(fleet).values()] == [1, 1]


def test_claims_that_change_are_sent_to_clients() -> None:
    same = answer(node_body("a", "0"), 'W/"18c-7"')
    nodes = ScriptedNodes({"http://a:9400": same})
    fleet, _ = a_fleet(nodes, ListedNodes(address("b"), address("a")))
    asyncio.run(read_all(fleet))
    json_of(fleet)
    seen = fleet.revision
    nodes.answers["http://b:9400"] = same
    asyncio.run(read_all(fleet))
    assert set(json_of(fleet, seen)) == {"a", "b"}


@pytest.mark.parametrize("key", ["http://a:9400", "big"])
def test_nodes_are_found_by_url_or_by_a_name_that_is_unique(key: str) -> None:
    fleet, _ = a_fleet(ScriptedNodes(), ListedNodes(address("a", name="big"), address("b", name="x")))
    asyncio.run(fleet.refresh())
    found = fleet.find_node(key)
    assert found is not None
    assert found.address.host == "a"
    assert fleet.find_node("nobody") is None


def test_the_fleet_is_ready_when_its_lists_were_tried() -> None:
    listed = ListedNodes()
    listed.error = GpuledgerError("x")
    fleet, _ = a_fleet(ScriptedNodes(), listed)
    assert fleet.unready_reason
    asyncio.run(fleet.refresh())
    assert not fleet.unready_reason


def test_starting_and_stopping_leaves_no_task() -> None:
    async def run() -> int:
        nodes = ScriptedNodes({"http://a:9400": node_body("a", "0")})
        fleet, _ = a_fleet(nodes, ListedNodes(address("a")))
        fleet.start()
        while not fleet.nodes:
            await asyncio.sleep(0)
        await fleet.stop()
        return len(asyncio.all_tasks())

    assert asyncio.run(run()) == 1


def test_reservations_are_not_free_now() -> None:
    devices = [
        device("0", availability="free"),
        device("1", availability="reserved", reserved_by="ann"),
        device("2", reserved_by="ann"),
        device("3", availability="recently_used", state="idle"),
        device("4", state="active", availability="in_use"),
    ]
    nodes = ScriptedNodes({"http://a:9400": body("a", *devices, source=REAL)})
    fleet, _ = a_fleet(nodes, ListedNodes(address("a")))
    asyncio.run(read_all(fleet))
    assert [gpu["free_now"] for gpu in json_of(fleet)["a"]["gpus"]] == [True, False, False, False, False]
