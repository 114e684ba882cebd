"""ClaimIndex: what the ResourceClaims of this node's pods say, each read once from the API server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Final

from gpuledger.host.owner_index import PolledIndex
from gpuledger.kubernetes.api_client import (
    ApiClient,
    ApiResponseInterrupted,
    ApiServerRefused,
    ApiServerUnreachable,
)
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock
from gpuledger.workloads.pods.claims import ClaimedParts, ClaimName, ClaimUse, ResourceClaims, parse_claim
from gpuledger.workloads.pods.resource_slices import DRA_GROUP, discover_dra_version

_PERIOD: Final = 60.0
# Seconds. The allocation of a claim does not change while a pod uses it; this covers what was not seen.
_LONGEST_KNOWN: Final = 600.0
_NOT_READ: Final = (None, float("-inf"))


class ClaimReader:
    """Reads the claims that are in use. A claim that cannot be read does not affect the others.

    If the API server does not respond at all, the rest is left to the next read: each request could take as
    long as its time limit.
    """

    def __init__(self, client: ApiClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        # What each claim says, None if it could not be read, and until when that counts.
        self._known: dict[ClaimUse, tuple[ClaimedParts | None, float]] = {}

    def read(self, uses: Iterable[ClaimUse]) -> tuple[ResourceClaims, GpuledgerError | None]:
        """All claims in use, and the error of the first that could not be read."""
        now = self._clock.elapsed()
        self._known = {use: self._known.get(use, _NOT_READ) for use in uses}
        error = self._read_due([use for use, (parts, until) in self._known.items() if until <= now], now)
        found: dict[ClaimName, ClaimedParts | None] = {}
        for use, (parts, _) in self._known.items():
            if parts is not None or use.claim not in found:
                found[use.claim] = parts
        return ResourceClaims(found, error is None), error

    def _read_due(self, due: Iterable[ClaimUse], now: float) -> GpuledgerError | None:
        first_error: GpuledgerError | None = None
        version: str | None = None
        for use in due:
            try:
                version = discover_dra_version(self._client) if version is None else version
                self._known[use] = (self._get(version, use.claim), now + _LONGEST_KNOWN)
            except GpuledgerError as error:
                first_error = first_error or error
                if version is None or isinstance(error, (ApiServerUnreachable, ApiResponseInterrupted)):
                    break
        return first_error

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
