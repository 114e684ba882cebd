"""Version of remote write that a receiver gets: 1.0, 2.0, or 2.0 as long as the receiver understands it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gpuledger.http.client_messages import HttpResponse

VERSION_1: Final = "1.0"
VERSION_2: Final = "2.0"
AUTO: Final = "auto"
PROTOCOLS: Final = (AUTO, VERSION_1, VERSION_2)
# Headers of requests, by version.
VERSION_HEADERS: Final = {
    VERSION_1: (
        ("Content-Type", "application/x-protobuf"),
        ("X-Prometheus-Remote-Write-Version", "0.1.0"),
    ),
    VERSION_2: (
        ("Content-Type", "application/x-protobuf;proto=io.prometheus.write.v2.Request"),
        ("X-Prometheus-Remote-Write-Version", "2.0.0"),
    ),
}
# 2.0 receivers send it with every response to valid requests, also if it is 0.
_WRITTEN: Final = "x-prometheus-remote-write-samples-written"
_UNSUPPORTED: Final = 415
# Responses that receivers without 2.0 may give: bad request, not found, internal error, and so on. An
# overloaded or restarting receiver, or one that requires a login, says nothing about versions.
_UNCLEAR: Final = frozenset({400, 404, 405, 406, 409, 413, 422, 500, 501})


@dataclass(frozen=True, slots=True)
class WriteAnswer:
    """The response to a request of `size` bytes.

    `unwritten`: samples that the receiver did not write. In 1.0 that is none after a 2xx response, and
    possibly all after others.
    """

    response: HttpResponse
    size: int
    unwritten: int

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.response.status


class WriteProtocol:
    """Chooses the version for one receiver, and remembers 1.0 for one that does not understand 2.0.

    `setting` is one of PROTOCOLS. `version` is the one to use. `known`: the receiver has shown that it
    understands it, or it is configured.
    """

    def __init__(self, setting: str) -> None:
        self._auto = setting == AUTO
        self.version = VERSION_1 if setting == VERSION_1 else VERSION_2
        self.known = not self._auto

    def judge(self, response: HttpResponse) -> bool | None:
        """Return whether a response to a 2.0 request shows that the receiver understands 2.0; None: unclear.

        A receiver of 1.0 that ignores the version accepts the request and stores nothing: then a 2xx response
        lacks the number of written samples.
        """
        status = response.status
        if _WRITTEN in response.headers:
            self.known = True
            return True
        if 200 <= status < 300 or status == _UNSUPPORTED:
            return False
        return None if not self.known and status in _UNCLEAR else True

    def fall_back(self) -> bool:
        """Use 1.0 from now on; False if the user requires 2.0."""
        if self._auto:
            self.version, self.known = VERSION_1, True
        return self._auto


def unwritten_samples(response: HttpResponse, samples: int, version: str) -> int:
    """Return how many samples of a request were not written, as far as the response says."""
    text = response.headers.get(_WRITTEN, "").strip() if version == VERSION_2 else ""
    if text.isascii() and text.isdecimal():
        return max(0, samples - int(text[:12]))
    return 0 if response.status < 300 else samples
