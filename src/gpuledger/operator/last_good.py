"""What of a resource was applied last, all of it: it runs on while a newer specification cannot be.

The resource's own status has the text of it, because an operator that begins knows nothing else: who may
write there may as well write the specification.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from gpuledger.operator.api import Json
from gpuledger.operator.reading import read
from gpuledger.operator.render.objects import Rendered
from gpuledger.operator.spec import GpuMonitor

# In bytes, of one and a half megabytes that the API server takes for all of a resource.
_LONGEST: Final = 256 << 10


@dataclass(slots=True)
class Good:
    """A specification, its text, and its objects: None while they were not rendered."""

    text: str
    asked: GpuMonitor
    rendered: Rendered | None = None

    @property
    def kept(self) -> str | None:
        """The text as a status has it; None for one that is too long to stand there twice."""
        return self.text if len(self.text.encode()) <= _LONGEST else None


def text_of(body: Json) -> str:
    """A resource's specification: the same text for the same content."""
    return json.dumps(body.get("spec") or {}, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def recalled(body: Json) -> Good | None:
    """What a resource's status says; None where it says nothing that this operator would still take."""
    text = str((body.get("status") or {}).get("appliedSpec") or "")
    try:
        found = read({**body, "spec": json.loads(text)})
    except ValueError:
        return None
    return None if found.monitor is None else Good(text, found.monitor)
