"""One client's connection: parse requests with h11, write responses as fast as the client reads."""

from __future__ import annotations

import asyncio
from functools import partial
from math import inf
from typing import Protocol, cast

import h11

from gpuledger.http.messages import parse_request, protocol_error_response, request_fault, response_head
from gpuledger.http.registry import ConnectionRegistry
from gpuledger.http.response_writer import ResponseWriter
from gpuledger.http.routes import (
    PendingResponse,
    Request,
    Response,
    Routes,
    completed_response,
    text_response,
)


class RequestGate(Protocol):
    """Authenticates requests, and adds headers to every response."""

    @property
    def generation(self) -> int:
        """Changes when clients must authenticate again: streams of an earlier generation are ended."""

    @property
    def rejection(self) -> Response:
        """The response to a request that a future of `decide` rejects."""

    def decide(self, request: Request) -> Response | asyncio.Future[bool] | None:
        """None accepts the request, a Response rejects it, a future decides later. Does not block."""

    def identify(self, request: Request, certificate_name: str) -> Request:
        """An accepted request with the name that its password, or else the client certificate, proved."""

    def add_headers(self, response: Response) -> Response:
        """The response with additional headers."""


class ClientConnection(asyncio.BufferedProtocol):
    """Serves one request after the other, pipelined ones too, until either side closes the connection.

    It is in one of these states: reading a request; waiting for the decision of its gate; waiting for a
    response that is being computed; writing a response; or lingering, which means that a response ended the
    connection early and further received bytes are dropped.

    While it waits or writes, it does not read, so that a client that reads no responses cannot queue
    requests. During a stream it reads up to the size of one request, to detect that the client has closed.
    """

    def __init__(self, registry: ConnectionRegistry, routes: Routes, gate: RequestGate | None = None) -> None:
        self.deadline = 0.0
        self._registry = registry
        self._routes = routes
        self._gate = gate
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=registry.limits.header_bytes)
        self._writer = ResponseWriter(self._http, self._send_bytes, self._continue_writing)
        self._transport: asyncio.Transport | None = None
        self._client = ""
        # The name in the verified client certificate.
        self._certificate_name = ""
        self._request: Request | None = None
        self._generation = 0
        self._body_bytes = 0
        self._served = False
        self._received = False
        # Waiting for the gate, or for a response that is being computed.
        self._waiting = False
        self._computing = False
        self._lingering = False
        self._dropped = 0

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection."""
        self.accept(cast("asyncio.Transport", transport))

    def accept(self, transport: asyncio.Transport) -> None:
        """Register the connection of an accepted socket."""
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self._client = f"{peer[0]} {peer[1]}" if isinstance(peer, tuple) else ""
        # Pause writing as soon as the kernel buffer is full: the rest is read from the shared body later.
        transport.set_write_buffer_limits(high=0)
        self.deadline = self._registry.now + self._registry.limits.request_seconds
        self._registry.admit(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  (asyncio's signature)
        """Unregister the connection and discard the response."""
        self._registry.forget(self)
        self._writer.discard()
        self._transport = None

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  (asyncio's signature)
        """The registry's shared buffer."""
        return self._registry.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Handle received bytes."""
        if self._lingering:
            self._dropped += nbytes
            if self._dropped > self._registry.limits.body_bytes:
                self.abort()
            return
        if not self._received:
            self._received = True
            self.deadline = self._registry.now + self._registry.limits.request_seconds
        self._http.receive_data(bytes(self._registry.buffer[:nbytes]))
        if self._writer.streaming:
            self._read_beside_stream()
        self._advance()

    def eof_received(self) -> None:
        """The client sends no more requests; all earlier ones have been answered. A stream is ended, because
        only a failed write would show that the client no longer reads.

        Returning None lets the transport send its buffer and close.
        """
        if self._writer.end_stream():
            self.deadline = self._registry.now + self._registry.limits.response_seconds
        elif not self._lingering:
            self._http.receive_data(b"")
            self._advance()

    def pause_writing(self) -> None:
        """The kernel's buffer for this client is full."""
        self._writer.blocked = True
        if self._writer.streaming:
            self.deadline = self._registry.now + self._registry.limits.response_seconds

    def resume_writing(self) -> None:
        """The kernel's buffer has room again."""
        self._writer.blocked = False
        if self._writer.streaming:
            self.deadline = inf
        self._continue_writing()

    # Called by the registry and by TLS.

    @property
    def idle(self) -> bool:
        """Between two requests, without a byte of the next one."""
        return self._served and not self._received and not self._lingering and not self._closing

    def expire(self) -> None:
        """Handle the passed deadline: 408 for an incomplete request, 503 for a response that takes too long
        to compute; a partly read response is cut off, an idle connection is closed.
        """
        closing = self._closing
        if self._computing and not closing:
            self._waiting = self._computing = False
            self.refuse(text_response("computing the response took too long", 503, (("Retry-After", "10"),)))
        elif self._writer.busy or self._waiting or closing:
            self.abort()
        elif self._lingering:
            self.close()
        elif self._received:
            self.refuse(text_response("the request did not arrive in time", 408))
        else:
            self.close()

    def finish(self) -> None:
        """Close after the current request, immediately without one; a stream is ended."""
        if not self._received:
            self.close()
        elif self._writer.end_stream():
            self._next_request()

    def close(self) -> None:
        """Close when the written bytes have been sent; the deadline still applies."""
        if self._transport is not None and not self._closing:
            self._transport.close()

    def abort(self) -> None:
        """Close immediately, dropping unsent bytes."""
        if self._transport is not None:
            self._transport.abort()

    def refuse(self, response: Response) -> None:
        """Send a response, then close the connection without handling further requests."""
        transport = self._transport
        if transport is None or self._closing:
            return
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.abort()
            return
        head_only = self._request is not None and self._request.method == "HEAD"
        head = self._http.send(response_head(response, close=True)) or b""
        self._lingering = True
        self.deadline = self._registry.now + self._registry.limits.linger_seconds
        transport.write(head if head_only else head + response.body)
        # TLS cannot: the client is closed after it had the time to read the response.
        if transport.can_write_eof():
            transport.write_eof()
        self._resume_reading()

    # Reading requests.

    def _advance(self) -> None:
        """Handle received bytes until more are needed or a response is pending."""
        while self._open_for_requests():
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                self.refuse(protocol_error_response(error))
                return
            if isinstance(event, h11.Request):
                self._request = parse_request(event, self._client)
                self._body_bytes = 0
                refusal = request_fault(event, self._registry.limits)
                refusal = refusal or self._registry.rejection_for(self, self._request.path)
                if refusal is not None:
                    self.refuse(refusal)
                    return
                if self._http.they_are_waiting_for_100_continue:
                    self._send_bytes(self._http.send(h11.InformationalResponse(status_code=100, headers=[])))
            elif isinstance(event, h11.Data):
                self._body_bytes += len(event.data)
                if self._body_bytes > self._registry.limits.body_bytes:
                    self.refuse(
                        text_response("the request body is too large: request bodies are not used", 413)
                    )
            elif isinstance(event, h11.EndOfMessage):
                self._answer()
                if self._waiting:
                    return
                if self._received and not self._writer.busy:
                    # More pipelined requests have arrived: serve other clients first.
                    self._pause_reading()
                    asyncio.get_running_loop().call_soon(self._advance)
                    return
            elif isinstance(event, h11.ConnectionClosed):
                self.close()
                return
            else:
                self._resume_reading()
                return

    def _open_for_requests(self) -> bool:
        return not self._closing and not self._writer.busy and not self._waiting and not self._lingering

    def _answer(self) -> None:
        if self._request is None:
            raise RuntimeError("h11 ended a message that it had not started")
        request = self._request
        verdict = None
        if self._gate is not None:
            self._generation = self._gate.generation
            verdict = self._gate.decide(request)
        if isinstance(verdict, asyncio.Future):
            self._wait(self._registry.limits.response_seconds)
            verdict.add_done_callback(partial(self._decided, request))
        else:
            self._respond(request, verdict)

    def _wait(self, seconds: float) -> None:
        self._waiting = True
        self.deadline = self._registry.now + seconds
        self._pause_reading()

    def _decided(self, request: Request, verdict: asyncio.Future[bool]) -> None:
        """The gate has decided; the client may have closed the connection meanwhile."""
        self._waiting = False
        if self._gate is not None and self._open_for_requests():
            self._respond(request, None if verdict.result() else self._gate.rejection)
            self._advance()

    def _respond(self, request: Request, refusal: Response | None) -> None:
        if refusal is None and self._gate is not None:
            request = self._gate.identify(request, self._certificate_name)
        answer = self._routes.respond(request) if refusal is None else refusal
        if isinstance(answer, Response):
            self._send(request, answer)
        else:
            self._computing = True
            self._wait(self._registry.limits.answer_seconds)
            answer.add_done_callback(partial(self._computed, request))

    def _computed(self, request: Request, answer: PendingResponse) -> None:
        """The response is computed. The client may have closed, or have received a 503 already."""
        response = completed_response(request, answer)
        if not self._computing:
            return
        self._waiting = self._computing = False
        if self._open_for_requests():
            self._send(request, response)
            self._advance()

    # Writing responses.

    def _send(self, request: Request, response: Response) -> None:
        if self._gate is not None:
            response = self._gate.add_headers(response)
        self.deadline = self._registry.now + self._registry.limits.response_seconds
        close, head_only = self._registry.stopping, request.method == "HEAD"
        if self._writer.begin(response, close=close, head_only=head_only):
            self._next_request()
            return
        if not self._writer.streaming:
            self._pause_reading()
            self._registry.backlog.hold(self, response.body)
            return
        self._read_beside_stream()
        if not self._writer.blocked:
            self.deadline = inf

    def _send_bytes(self, data: bytes | memoryview | None) -> None:
        # asyncio logs a warning for each write to a closed connection.
        if data and self._transport is not None and not self._closing:
            self._transport.write(data)

    def _continue_writing(self) -> None:
        """Write more when the client has read enough or its stream has more; then handle the next request."""
        if self._closing:
            return
        gate = self._gate
        if self._writer.streaming and gate is not None and gate.generation != self._generation:
            # Clients must authenticate again. Close the connection, too: only a new handshake requests the
            # client's certificate.
            self._writer.end_stream()
            self.deadline = self._registry.now + self._registry.limits.response_seconds
            self.close()
        elif self._writer.busy and self._writer.continue_writing():
            self._next_request()
            self._advance()

    @property
    def _closing(self) -> bool:
        """Whether the connection is closed or closing."""
        return self._transport is None or self._transport.is_closing()

    def _next_request(self) -> None:
        self._registry.backlog.release(self)
        self._request = None
        self._served = True
        self._received = False
        if (
            self._registry.stopping
            or self._http.our_state is not h11.DONE
            or self._http.their_state is not h11.DONE
        ):
            self.close()
            return
        self._http.start_next_cycle()
        self._received = bool(self._http.trailing_data[0])
        limits = self._registry.limits
        seconds = limits.request_seconds if self._received else limits.idle_seconds
        self.deadline = self._registry.now + seconds

    def _read_beside_stream(self) -> None:
        if len(self._http.trailing_data[0]) < self._registry.limits.header_bytes:
            self._resume_reading()
        else:
            self._pause_reading()

    def _pause_reading(self) -> None:
        transport = self._transport
        if transport is not None and transport.is_reading():
            transport.pause_reading()

    def _resume_reading(self) -> None:
        transport = self._transport
        if transport is not None and not self._closing and not transport.is_reading():
            transport.resume_reading()
