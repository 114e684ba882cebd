"""An API server in memory, as far as the operator writes to one: objects by path, versions, conflicts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from gpuledger.kubernetes.writing import APPLY, MERGE, Question

Json = dict[str, Any]


class MemoryApi:
    """A Transport. `refuses` says of a body why it is not valid; `asked` is every question, in order.

    Apply is a merge that forgets nothing: to take fields away that are not wanted any more is a real one's.
    """

    def __init__(self, refuses: Callable[[Json], str] = lambda _: "") -> None:
        self.objects: dict[str, Json] = {}
        self.asked: list[Question] = []
        self._refuses = refuses
        self._version = 0

    @property
    def writes(self) -> list[str]:
        """`METHOD path` of what could have changed something."""
        return [f"{one.method} {one.path}" for one in self.asked if one.writes]

    async def send(self, question: Question) -> tuple[int, bytes]:
        self.asked.append(question)
        body = json.loads(question.body) if question.body else {}
        status, found = getattr(self, f"_{question.method.lower()}")(question, body)
        return status, json.dumps(found).encode()

    async def close(self) -> None:
        """Nothing."""

    def _get(self, question: Question, _: Json) -> tuple[int, Json]:
        if question.path in self.objects:
            return 200, self.objects[question.path]
        if question.path.rpartition("/")[2].endswith("s"):
            within = [body for path, body in self.objects.items() if path.rpartition("/")[0] == question.path]
            return 200, {"metadata": {"resourceVersion": str(self._version)}, "items": within}
        return _no(404, "NotFound")

    def _post(self, question: Question, body: Json) -> tuple[int, Json]:
        path = f"{question.path}/{body['metadata']['name']}"
        if path in self.objects:
            return _no(409, "AlreadyExists")
        return 201, self.keep(path, body)

    def _put(self, question: Question, body: Json) -> tuple[int, Json]:
        there = self.objects.get(question.path)
        if there is None:
            return _no(404, "NotFound")
        if there["metadata"]["resourceVersion"] != body["metadata"].get("resourceVersion"):
            return _no(409, "Conflict")
        return 200, self.keep(question.path, body)

    def _patch(self, question: Question, body: Json) -> tuple[int, Json]:
        there = self.objects.get(question.path)
        if question.content_type == MERGE and there is None:
            return _no(404, "NotFound")
        wanted = (body.get("metadata") or {}).get("resourceVersion")
        if there and wanted and wanted != there["metadata"]["resourceVersion"]:
            return _no(409, "Conflict")
        if question.content_type == APPLY and (why := self._refuses(body)):
            return _no(422, "Invalid", why)
        merged = _merged(there or {}, body)
        if "dryRun" in question.query or merged == there:
            return 200, merged
        return 200 if there else 201, self.keep(question.path, merged)

    def _delete(self, question: Question, body: Json) -> tuple[int, Json]:
        there = self.objects.get(question.path)
        if there is None:
            return _no(404, "NotFound")
        if body["preconditions"]["uid"] != there["metadata"]["uid"]:
            return _no(409, "Conflict")
        del self.objects[question.path]
        return 200, there

    def keep(self, path: str, body: Json) -> Json:
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
