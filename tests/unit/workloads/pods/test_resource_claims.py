"""What the ResourceClaims in use say, in every API version, and claims that cannot be read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import FakeClock
from gpuledger.kubernetes.api_client import (
    ApiClient,
    ApiResponseInterrupted,
    ApiServerRefused,
    ApiServerUnreachable,
)
from gpuledger.model.errors import GpuledgerError
from gpuledger.workloads.pods.claims import NO_CLAIMS, ClaimedPart, ClaimUse, ResourceClaims, parse_claim
from gpuledger.workloads.pods.resource_claims import ClaimIndex, ClaimReader
from pods_server import ApiServer, body, serving, status

GROUP = "/apis/resource.k8s.io"
GPU = ("gpu.nvidia.com", "n1", "gpu-0")
USE = ClaimUse(("ops", "all"), "watch-1")


def result(device: str = "gpu-0", **more: Any) -> dict[str, Any]:
    return {"driver": "gpu.nvidia.com", "pool": "n1", "device": device, "request": "gpu", **more}


def a_claim(*results: Any) -> dict[str, Any]:
    return {"status": {"allocation": {"devices": {"results": list(results)}}}}


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with serving() as running:
        yield running


def serve(server: ApiServer, claim: Any, version: str = "v1", name: str = "all") -> None:
    versions = {"kind": "APIGroup", "versions": [{"version": "v1alpha3"}, {"version": version}]}
    server.other_paths[GROUP] = body(json.dumps(versions).encode())
    path = f"{GROUP}/{version}/namespaces/ops/resourceclaims/{name}"
    server.other_paths[path] = claim if callable(claim) else body(json.dumps(claim).encode())


def index(server: ApiServer, *uses: ClaimUse) -> ClaimIndex:
    clock = FakeClock()
    return ClaimIndex(ClaimReader(ApiClient(server.access), clock), lambda: uses or (USE,), clock=clock)


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
def test_admin_access_is_read_from_every_api_version(server: ApiServer, version: str) -> None:
    serve(server, a_claim(result(adminAccess=True), result("gpu-1")), version)
    claims = index(server)
    assert claims.refresh()
    assert claims.value.find(USE.claim, GPU, "") == ClaimedPart(True, {})
    assert claims.value.find(USE.claim, ("gpu.nvidia.com", "n1", "gpu-1"), "") == ClaimedPart(False, {})


def test_a_claim_is_read_once_for_each_pod_that_uses_it(server: ApiServer) -> None:
    serve(server, a_claim(result()))
    uses = [USE]
    clock = FakeClock()
    claims = ClaimIndex(ClaimReader(ApiClient(server.access), clock), lambda: uses, clock=clock)
    for _ in range(3):
        claims.refresh()
    assert len(server.requests) == 2
    uses[:] = [ClaimUse(USE.claim, "watch-2")]
    claims.refresh()
    assert len(server.requests) == 4
    clock.advance(601)
    claims.refresh()
    assert len(server.requests) == 6


def test_without_claims_the_api_server_is_not_queried(server: ApiServer) -> None:
    claims = ClaimIndex(ClaimReader(ApiClient(server.access), FakeClock()), lambda: (), clock=FakeClock())
    assert claims.value.is_pending(USE.claim)
    assert claims.refresh()
    assert not server.requests


def test_a_claim_that_is_gone_is_not_known(server: ApiServer) -> None:
    serve(server, status(404))
    claims = index(server)
    assert claims.refresh()
    assert claims.value.find(USE.claim, GPU, "") is None
    assert not claims.value.is_pending(USE.claim)


def test_a_missing_permission_names_the_rule_and_ends_the_wait(server: ApiServer) -> None:
    serve(server, status(403, 'User "system:serviceaccount:mon:gpuledger" cannot get'))
    claims = index(server)
    assert not claims.refresh()
    assert 'resources: ["resourceclaims"], verbs: ["get"]' in claims.health.error
    assert not claims.value.is_pending(USE.claim)


@pytest.mark.parametrize(
    "broken", [status(500), body(b"{"), body(b"[" * 100_000)], ids=["500", "cut", "deep"]
)
def test_one_claim_that_cannot_be_read_does_not_affect_the_others(server: ApiServer, broken: Any) -> None:
    serve(server, broken)
    serve(server, a_claim(result(adminAccess=True)), name="other")
    other = ClaimUse(("ops", "other"), "watch-2")
    claims = index(server, USE, other)
    assert not claims.refresh()
    assert claims.value.find(other.claim, GPU, "") == ClaimedPart(True, {})
    assert claims.value.find(USE.claim, GPU, "") is None


class Failing:
    """A client for which each path has a body or fails; `paths` has the requests."""

    def __init__(self, **answers: GpuledgerError | bytes) -> None:
        self.answers = {"": b'{"versions": [{"version": "v1"}]}', **answers}
        self.paths: list[str] = []

    @contextmanager
    def get(self, path: str, _query: object) -> Iterator[Iterator[bytes]]:
        name = path.removeprefix(GROUP).rpartition("/")[2]
        self.paths.append(name)
        if isinstance(answer := self.answers[name], GpuledgerError):
            raise answer
        yield iter([answer])


DOWN = ApiServerUnreachable("cannot be reached (timed out)")
CUT = ApiResponseInterrupted("the response broke off")
REFUSED = ApiServerRefused("403", 403)
CLAIMS = [ClaimUse(("ops", name), name) for name in ("c0", "c1", "c2")]


@pytest.mark.parametrize(
    ("answers", "requests"),
    [
        # Without an API server, or without its versions, no claim can be read.
        ({"": DOWN}, [""]),
        ({"": REFUSED}, [""]),
        ({"": GpuledgerError("the token cannot be read")}, [""]),
        ({"c0": DOWN}, ["", "c0"]),
        ({"c1": DOWN}, ["", "c0", "c1"]),
        ({"c1": CUT}, ["", "c0", "c1"]),
        # The rule of one namespace, and one claim.
        ({"c0": REFUSED}, ["", "c0", "c1", "c2"]),
        ({"c0": ApiServerRefused("500", 500), "c1": b"{"}, ["", "c0", "c1", "c2"]),
    ],
)
def test_one_read_waits_for_an_api_server_that_does_not_respond_only_once(
    answers: dict[str, GpuledgerError | bytes], requests: list[str]
) -> None:
    good = json.dumps(a_claim(result())).encode()
    client = Failing(**{"c0": good, "c1": good, "c2": good, **answers})
    reader = ClaimReader(client, FakeClock())  # type: ignore[arg-type]
    found, error = reader.read(CLAIMS)
    assert client.paths == requests
    assert error is not None
    # All of them are in use, and none is waited for.
    assert len(found) == 3
    assert not any(found.is_pending(use.claim) for use in CLAIMS)
    client.answers |= {"": Failing().answers[""], "c0": good, "c1": good, "c2": good}
    found, error = reader.read(CLAIMS)
    assert error is None
    assert all(found.find(use.claim, GPU, "") for use in CLAIMS)


def test_a_claim_that_cannot_be_read_again_is_still_known_and_tried_each_time() -> None:
    client, clock = Failing(c0=json.dumps(a_claim(result(adminAccess=True))).encode()), FakeClock()
    reader = ClaimReader(client, clock)  # type: ignore[arg-type]
    reader.read(CLAIMS[:1])
    clock.advance(601)
    client.answers["c0"] = DOWN
    for _ in range(2):
        found, error = reader.read(CLAIMS[:1])
        assert error is DOWN
        assert found.find(CLAIMS[0].claim, GPU, "") == ClaimedPart(True, {})
    assert client.paths.count("c0") == 3


def test_two_pods_of_one_claim_know_it_if_one_of_them_could_be_read_for() -> None:
    good = json.dumps(a_claim(result())).encode()
    client = Failing(c0=good)
    reader = ClaimReader(client, FakeClock())  # type: ignore[arg-type]
    reader.read(CLAIMS[:1])
    client.answers["c0"] = DOWN
    found, _ = reader.read([CLAIMS[0], ClaimUse(CLAIMS[0].claim, "another")])
    assert found.find(CLAIMS[0].claim, GPU, "") is not None


def test_a_device_by_a_normal_request_and_one_for_monitoring_is_held() -> None:
    for results in ([result(), result(adminAccess=True)], [result(adminAccess=True), result()]):
        assert parse_claim(a_claim(*results)) == {(*GPU, ""): ClaimedPart(False, {})}


def test_a_share_has_the_capacity_that_the_claim_consumes() -> None:
    found = parse_claim(a_claim(result(shareID="s1", consumedCapacity={"memory": "20Gi"})))
    assert found == {(*GPU, "s1"): ClaimedPart(False, {"memory": Fraction(20 << 30)})}


@pytest.mark.parametrize("value", [False, None, "true", 1, {}])
def test_only_true_is_admin_access(value: Any) -> None:
    assert not parse_claim(a_claim(result(adminAccess=value)))[*GPU, ""].is_admin


def test_without_an_index_nothing_is_pending() -> None:
    assert not NO_CLAIMS.is_pending(USE.claim)
    assert ResourceClaims(waits=True).is_pending(USE.claim)


JSON = st.sampled_from([None, True, 7, "gpu-0", "", "20Gi", [], {}, {"memory": "1Gi"}, ["x"]])
KEYS = st.sampled_from(["driver", "pool", "device", "shareID", "adminAccess", "consumedCapacity", "x"])


@given(
    JSON
    | st.lists(st.dictionaries(KEYS, JSON, max_size=7) | JSON, max_size=4).map(lambda found: a_claim(*found))
)
def test_arbitrary_claims_are_parsed(data: Any) -> None:
    for key, part in parse_claim(data).items():
        assert all(isinstance(name, str) for name in key)
        assert isinstance(part.is_admin, bool)
