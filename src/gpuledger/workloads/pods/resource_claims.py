"""ClaimIndex: what the ResourceClaims of this node's pods say, each read once from the API server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Final

from gpuledger.host.owner_index import PolledIndex
from gpuledger.kubernetes.api_client import ApiClient, ApiServerRefused
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock
from gpuledger.workloads.pods.claims import ClaimedParts, ClaimName, ClaimUse, ResourceClaims, parse_claim
from gpuledger.workloads.pods.resource_slices import DRA_GROUP, discover_dra_version

_PERIOD: Final = 60.0
# Seconds. The allocation of a claim does not change while a pod uses it; this covers what was not seen.
_LONGEST_KNOWN: Final = 600.0


class ClaimReader:
    """Reads the claims that are in use. A claim that cannot be read does not affect the others."""

    def __init__(self, client: ApiClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._known: dict[ClaimUse, tuple[float, ClaimedParts | None]] = {}

    def read(self, uses: Iterable[ClaimUse]) -> tuple[ResourceClaims, GpuledgerError | None]:
        """All claims in use, and the error of the first that could not be read."""
        now, known, error = self._clock.elapsed(), {}, None
        version = None
        for use in uses:
            read_at, parts = self._known.get(use, (now, None))
            if parts is None or now - read_at > _LONGEST_KNOWN:
                read_at = now
                try:
                    version = discover_dra_version(self._client) if version is None else version
                    parts = self._get(version, use.claim)
                except GpuledgerError as failure:
                    error = error or failure
            known[use] = (read_at, parts)
        self._known = known
        return ResourceClaims({use.claim: parts for use, (_, parts) in known.items()}, error is None), error

    def _get(self, version: str, claim: ClaimName) -> ClaimedParts:
        namespace, name = claim
        path = f"{DRA_GROUP}/{version}/namespaces/{namespace}/resourceclaims/{name}"
        try:
            with self._client.get(path, {}) as chunks:
                found = json.loads(b"".join(chunks))
        except ApiServerRefused as refused:
            if refused.status != 404:
                raise
            # The claim was deleted with its pod, and the kubelet still lists both.
            return {}
        except (ValueError, RecursionError):
            raise GpuledgerError(
                f"ResourceClaim {namespace}/{name} is not valid JSON; check the proxy of the API server"
            ) from None
        return parse_claim(found)


class ClaimIndex(PolledIndex[ResourceClaims]):
    """The index of the claims in use. After a failed read, the claims that could be read are still known."""

    def __init__(self, reader: ClaimReader, uses: Callable[[], Iterable[ClaimUse]], *, clock: Clock) -> None:
        self._reader = reader
        self._uses = uses
        super().__init__(
            "resource_claims", self._read_claims, ResourceClaims(waits=True), period=_PERIOD, clock=clock
        )

    def _read_claims(self) -> ResourceClaims:
        found, error = self._reader.read(self._uses())
        if error is not None:
            self.value = found
            raise error
        return found
