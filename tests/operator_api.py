"""An API server in memory for the operator's requests: objects by path, versions, conflicts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from gpuledger.kubernetes.object_client import APPLY_PATCH_TYPE, MERGE_PATCH_TYPE, ApiRequest

Json = dict[str, Any]


class MemoryApi:
    """A Transport that records its `requests`. `find_error` returns why an applied body is invalid, or "".

    Unlike a real server's apply, this one merges, and does not remove fields that are no longer applied.
    """

    def __init__(self, find_error: Callable[[Json], str] = lambda _: "") -> None:
        self.objects: dict[str, Json] = {}
        self.requests: list[ApiRequest] = []
        self._find_error = find_error
        self._version = 0

    @property
    def writes(self) -> list[str]:
        """`METHOD path` of each request that can change an object."""
        return [f"{one.method} {one.path}" for one in self.requests if one.writes]

    async def send(self, request: ApiRequest) -> tuple[int, bytes]:
        self.requests.append(request)
        body = json.loads(request.body) if request.body else {}
        status, found = getattr(self, f"_{request.method.lower()}")(request, body)
        return status, json.dumps(found).encode()

    async def close(self) -> None:
        """Do nothing."""

    def _get(self, request: ApiRequest, _: Json) -> tuple[int, Json]:
        if request.path in self.objects:
            return 200, self.objects[request.path]
        if request.path.rpartition("/")[2].endswith("s"):
            within = [body for path, body in self.objects.items() if path.rpartition("/")[0] == request.path]
            return 200, {"metadata": {"resourceVersion": str(self._version)}, "items": within}
        return _no(404, "NotFound")

    def _post(self, request: ApiRequest, body: Json) -> tuple[int, Json]:
        path = f"{request.path}/{body['metadata']['name']}"
        if path in self.objects:
            return _no(409, "AlreadyExists")
        return 201, self.put_object(path, body)

    def _put(self, request: ApiRequest, body: Json) -> tuple[int, Json]:
        there = self.objects.get(request.path)
        if there is None:
            return _no(404, "NotFound")
        if there["metadata"]["resourceVersion"] != body["metadata"].get("resourceVersion"):
            return _no(409, "Conflict")
        return 200, self.put_object(request.path, body)

    def _patch(self, request: ApiRequest, body: Json) -> tuple[int, Json]:
        there = self.objects.get(request.path)
        if request.content_type == MERGE_PATCH_TYPE and there is None:
            return _no(404, "NotFound")
        expected = (body.get("metadata") or {}).get("resourceVersion")
        if there and expected and expected != there["metadata"]["resourceVersion"]:
            return _no(409, "Conflict")
        if request.content_type == APPLY_PATCH_TYPE and (why := self._find_error(body)):
            return _no(422, "Invalid", why)
        merged = _merged(there or {}, body)
        if "dryRun" in request.query or merged == there:
            return 200, merged
        return 200 if there else 201, self.put_object(request.path, merged)

    def _delete(self, request: ApiRequest, body: Json) -> tuple[int, Json]:
        there = self.objects.get(request.path)
        if there is None:
            return _no(404, "NotFound")
        if body["preconditions"]["uid"] != there["metadata"]["uid"]:
            return _no(409, "Conflict")
        del self.objects[request.path]
        return 200, there

    def put_object(self, path: str, body: Json) -> Json:
        self._version += 1
        there = self.objects.get(path)
        uid = there["metadata"]["uid"] if there else f"uid-{self._version}"
        metadata = {**body["metadata"], "uid": uid, "resourceVersion": str(self._version)}
        self.objects[path] = {**body, "metadata": metadata}
        return self.objects[path]


def _merged(there: Json, patch: Json) -> Json:
    found = dict(there)
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        elif isinstance(value, dict):
            inner = found.get(key)
            found[key] = _merged(inner if isinstance(inner, dict) else {}, value)
        else:
            found[key] = value
    return found


def _no(status: int, reason: str, message: str = "") -> tuple[int, Json]:
    return status, {"kind": "Status", "reason": reason, "message": message or reason}
