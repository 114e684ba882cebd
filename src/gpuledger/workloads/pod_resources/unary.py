"""One unary gRPC call over a unix socket.

Resident MiB that a client adds to `serve` with its pod watch (27.5 before), after 20 Lists of 110 pods,
measured one after the other on one machine: grpcio 16.9, grpclib with protobuf 5.8, h2 with protobuf 4.6, of
which h2 is 1.5. Hence h2 for the wire and protobuf for the messages; this package, so written, adds 5.1.
"""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable, Iterable
from typing import Final
from urllib.parse import unquote

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import H2Error
from h2.settings import SettingCodes, Settings

from gpuledger.model.errors import GpuledgerError
from gpuledger.model.text import clean_name

LONGEST_ANSWER: Final = 64 * 1024 * 1024
_WINDOW: Final = 1024 * 1024
_PIECE: Final = 64 * 1024
# A gRPC message begins with a byte that says whether it is compressed, and four that give its length.
_PREFIX: Final = 5
_AGAIN: Final = "it is asked again"

RESOURCE_EXHAUSTED: Final = 8
PERMISSION_DENIED: Final = 7
UNIMPLEMENTED: Final = 12
UNAUTHENTICATED: Final = 16


class Unreachable(GpuledgerError):
    """Nobody is to be reached at the socket: it is not there, not permitted, or nobody listens."""


class CallFailed(GpuledgerError):
    """The server answered with a gRPC status other than OK; `code` is its number."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class UnaryClient:
    """Calls of a gRPC server at a unix socket, each over a connection of its own.

    So a kubelet that was restarted, and made its socket anew, is found by the next call. `timeout` is seconds
    for a whole call, `longest` the bytes of an answer that are taken.
    """

    def __init__(
        self,
        path: str,
        *,
        timeout: float = 5.0,
        longest: int = LONGEST_ANSWER,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._timeout = timeout
        self._longest = longest
        self._monotonic = monotonic

    def call(self, method: str, request: bytes) -> bytes:
        """The answer to `request`, sent to `/package.Service/Method`.

        Raises Unreachable, CallFailed, or GpuledgerError for a server that hangs or does not speak gRPC.
        """
        until = self._monotonic() + self._timeout
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            try:
                connection.settimeout(self._timeout)
                connection.connect(self._path)
            except TimeoutError:
                raise self._hangs() from None
            except OSError as error:
                raise self._unreachable(error) from None
            exchange = _Exchange(self._path, self._longest)
            try:
                return self._exchange(
                    connection, exchange, exchange.ask(method, request, self._timeout), until
                )
            except TimeoutError:
                raise self._hangs() from None
            except H2Error as error:
                raise _other_protocol(self._path, clean_name(str(error))) from None
            except OSError as error:
                raise GpuledgerError(f"{self._path} broke off: {error.strerror}; {_AGAIN}") from None

    def _exchange(self, connection: socket.socket, exchange: _Exchange, first: bytes, until: float) -> bytes:
        self._patience(connection, until)
        connection.sendall(first)
        while not exchange.ended:
            self._patience(connection, until)
            piece = connection.recv(_PIECE)
            if not piece:
                raise GpuledgerError(f"{self._path} closed the connection before its answer ended; {_AGAIN}")
            reply = exchange.take(piece)
            if reply and not exchange.ended:
                self._patience(connection, until)
                connection.sendall(reply)
        return exchange.message()

    def _patience(self, connection: socket.socket, until: float) -> None:
        left = until - self._monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(left)

    def _hangs(self) -> GpuledgerError:
        return GpuledgerError(
            f"{self._path} gave no whole answer within {self._timeout:g} s; see why the kubelet hangs: "
            "`journalctl -u kubelet`"
        )

    def _unreachable(self, error: OSError) -> Unreachable:
        if error.errno == errno.ENOENT:
            return Unreachable(
                f"no socket at {self._path}; mount the node's /var/lib/kubelet/pod-resources, or name the "
                "socket with --pod-resources-socket"
            )
        if error.errno in (errno.EACCES, errno.EPERM):
            return Unreachable(
                f"no permission for {self._path}; run as root (the kubelet's socket is root's)"
            )
        if error.errno == errno.ECONNREFUSED:
            return Unreachable(f"nobody listens at {self._path}; see that the kubelet runs on this node")
        return Unreachable(
            f"{self._path} cannot be connected to: {error.strerror or error}; name the kubelet's socket with "
            "--pod-resources-socket"
        )


class _Exchange:
    """One request and its answer as bytes, without the socket."""

    def __init__(self, path: str, longest: int) -> None:
        self.ended = False
        self._path = path
        self._longest = longest
        self._body = bytearray()
        self._headers: dict[str, str] = {}
        self._http = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self._http.local_settings = Settings(
            client=True,
            initial_values={SettingCodes.ENABLE_PUSH: 0, SettingCodes.INITIAL_WINDOW_SIZE: _WINDOW},
        )

    def ask(self, method: str, request: bytes, timeout: float) -> bytes:
        self._http.initiate_connection()
        self._http.increment_flow_control_window(_WINDOW)
        stream = self._http.get_next_available_stream_id()
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", method),
            (":authority", "localhost"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("grpc-timeout", f"{max(1, int(timeout * 1000))}m"),
            ("user-agent", "gpuledger"),
        ]
        self._http.send_headers(stream, headers)
        self._http.send_data(stream, b"\0" + len(request).to_bytes(4, "big") + request, end_stream=True)
        return self._http.data_to_send()

    def take(self, piece: bytes) -> bytes:
        # h2 takes these letters for the length of a frame, and waits for it.
        if piece.startswith(b"HTTP/1"):
            raise _other_protocol(self._path, "HTTP/1")
        self._see(self._http.receive_data(piece))
        return self._http.data_to_send()

    def _see(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, ResponseReceived | TrailersReceived):
                self._headers.update((str(name), str(value)) for name, value in event.headers)
            elif isinstance(event, DataReceived):
                self._collect(event.data)
                self._http.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, StreamEnded):
                self.ended = True
                return
            elif isinstance(event, StreamReset):
                code = int(event.error_code or 0)
                raise GpuledgerError(f"{self._path} broke off the answer (RST {code}); {_AGAIN}")
            elif isinstance(event, ConnectionTerminated):
                raise GpuledgerError(f"{self._path} is going away, the kubelet stops or restarts; {_AGAIN}")

    def _collect(self, data: bytes) -> None:
        if self._headers.get(":status") != "200":
            return
        self._body += data
        told = int.from_bytes(self._body[1:_PREFIX], "big") if len(self._body) >= _PREFIX else 0
        if max(told, len(self._body) - _PREFIX) > self._longest:
            raise GpuledgerError(
                f"{self._path} has an answer of {told} bytes, and {self._longest} are taken; please report it"
            )

    def message(self) -> bytes:
        self._see_status()
        told = int.from_bytes(self._body[1:_PREFIX], "big")
        if len(self._body) != _PREFIX + told:
            raise GpuledgerError(f"{self._path} told {told} bytes and sent another number; {_AGAIN}")
        if self._body[0]:
            raise GpuledgerError(f"{self._path} sent a compressed answer unasked; please report it")
        return bytes(memoryview(self._body)[_PREFIX:])

    def _see_status(self) -> None:
        told = self._headers.get("grpc-status", "")
        if not told.isdecimal():
            status = clean_name(self._headers.get(":status", "none"))
            raise GpuledgerError(
                f"{self._path} answered without a gRPC status (HTTP {status}); see that "
                "--pod-resources-socket names the kubelet's pod-resources socket"
            )
        if code := int(told):
            message = clean_name(unquote(self._headers.get("grpc-message", "")).replace("\n", " "), 200)
            raise CallFailed(f"{self._path} refused ({message or code}); {_remedy(code)}", code)


def _other_protocol(path: str, seen: str) -> GpuledgerError:
    return GpuledgerError(
        f"{path} does not speak gRPC ({seen}); see that --pod-resources-socket names the kubelet's "
        "pod-resources socket"
    )


def _remedy(code: int) -> str:
    if code in (PERMISSION_DENIED, UNAUTHENTICATED):
        return "run gpuledger as root, in a pod that may mount the socket"
    if code == RESOURCE_EXHAUSTED:
        return "the kubelet is asked too often, or its answer is too long for it; see who else asks it"
    if code == UNIMPLEMENTED:
        return "the kubelet does not serve this; Kubernetes 1.20 or newer is needed"
    return _AGAIN
