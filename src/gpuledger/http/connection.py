"""One client's connection: bytes to requests through h11, answers at the pace that the client takes them."""

from __future__ import annotations

import asyncio
from functools import partial
from math import inf
from typing import Protocol, cast

import h11

from gpuledger.http.messages import answer_to, fault_of, head_of, request_of
from gpuledger.http.registry import NOBODY, Registry, client_of
from gpuledger.http.response_writer import Sender
from gpuledger.http.routes import Later, Request, Response, Routes, arrived, plain


class Gate(Protocol):
    """Who is let in to the pages, and what headers every answer gets."""

    @property
    def era(self) -> int:
        """Another number once clients are to be asked anew who they are: what was let in before ends."""

    @property
    def refused(self) -> Response:
        """The answer to a request that `decide` promised to decide on, and then refused."""

    def decide(self, request: Request) -> Response | asyncio.Future[bool] | None:
        """None lets the request in, a Response is its refusal; a future decides later. Never waits."""

    def dress(self, response: Response) -> Response:
        """The answer with more headers."""


class Connection(asyncio.BufferedProtocol):
    """Serves one request after the other (pipelined ones too) until either side has enough.

    At any time it does one of these: it reads a request; it waits until its gate has decided on it; it waits
    for an answer that is being computed; it writes an answer; or it lingers, which means that an answer ended
    the conversation early and what still arrives is dropped.

    While it waits or writes it does not read, so that a client which takes no answers cannot queue requests.
    Beside a stream it does read, to hear that its client has gone, up to the size of one request.
    """

    def __init__(self, registry: Registry, routes: Routes, gate: Gate | None = None) -> None:
        self.deadline = 0.0
        self.client = NOBODY
        self._registry = registry
        self._routes = routes
        self._gate = gate
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=registry.limits.header_bytes)
        self._sender = Sender(self._http, self._send_bytes, self._go_on)
        self._transport: asyncio.Transport | None = None
        self._request: Request | None = None
        self._era = 0
        self._body_bytes = 0
        self._served = False
        self._received = False
        # For the gate, or for the answer to a request that was let in.
        self._waiting = False
        self._computing = False
        self._lingering = False
        self._dropped = 0

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection in."""
        self._transport = cast("asyncio.Transport", transport)
        # Pause as soon as the kernel does not take everything: the next piece waits in the shared page.
        self._transport.set_write_buffer_limits(high=0)
        self.deadline = self._registry.now + self._registry.limits.request_seconds
        self.client = client_of(transport.get_extra_info("peername"))
        self._registry.admit(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  (asyncio's signature)
        """Count the connection out and let go of the page."""
        self._registry.forget(self)
        self._sender.drop()
        self._transport = None

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002  (asyncio's signature)
        """The registry's one buffer: see there."""
        return self._registry.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have arrived."""
        if self._lingering:
            self._dropped += nbytes
            if self._dropped > self._registry.limits.body_bytes:
                self.abort()
            return
        if not self._received:
            self._received = True
            self.deadline = self._registry.now + self._registry.limits.request_seconds
        self._http.receive_data(bytes(memoryview(self._registry.buffer)[:nbytes]))
        if self._sender.streaming:
            self._read_beside_stream()
        self._advance()

    def eof_received(self) -> None:
        """The client sends no more. Whatever it has asked was answered: until then nothing is read. A stream
        ends: who hears it, and whether anybody does, would show only when a write fails.

        Returning None lets the transport send what it has and close.
        """
        if self._sender.end_stream():
            self.deadline = self._registry.now + self._registry.limits.response_seconds
        elif not self._lingering:
            self._http.receive_data(b"")
            self._advance()

    def pause_writing(self) -> None:
        """The kernel's buffer for this client is full."""
        self._sender.behind = True
        if self._sender.streaming:
            self.deadline = self._registry.now + self._registry.limits.response_seconds

    def resume_writing(self) -> None:
        """The client took what was pending."""
        self._sender.behind = False
        if self._sender.streaming:
            self.deadline = inf
        self._go_on()

    # What the registry and TLS call.

    @property
    def idle(self) -> bool:
        """Between two requests, with nothing received of the next one."""
        return self._served and not self._received and not self._lingering and not self._closing

    def expire(self) -> None:
        """Half a request is answered with 408, one whose answer does not come with 503; a half-taken answer
        is cut off; silence is just closed.
        """
        closing = self._closing
        if self._computing and not closing:
            self._waiting = self._computing = False
            self.refuse(plain("the answer took too long", 503, (("Retry-After", "10"),)))
        elif self._sender.busy or self._waiting or self._lingering or closing:
            self.abort()
        elif self._received:
            self.refuse(plain("the request took too long", 408))
        else:
            self.close()

    def finish(self) -> None:
        """End after the running request, at once when there is none; a stream has no other end."""
        if not self._received:
            self.close()
        elif self._sender.end_stream():
            self._next_request()

    def close(self) -> None:
        """End when what was written has been sent; the deadline still holds."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End now."""
        if self._transport is not None:
            self._transport.abort()

    def refuse(self, response: Response) -> None:
        """Answer, then end the conversation without reading on."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.abort()
            return
        head_only = self._request is not None and self._request.method == "HEAD"
        head = self._http.send(head_of(response, close=True)) or b""
        self._lingering = True
        self.deadline = self._registry.now + self._registry.limits.linger_seconds
        transport.write(head if head_only else head + response.body)
        if transport.can_write_eof():
            transport.write_eof()
        self._resume_reading()

    # Reading requests.

    def _advance(self) -> None:
        """Go on with what has been received until more is needed or an answer waits for its client."""
        while self._open_for_requests():
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                self.refuse(answer_to(error))
                return
            if isinstance(event, h11.Request):
                self._request = request_of(event, self.client)
                self._body_bytes = 0
                refusal = fault_of(event, self._registry.limits)
                refusal = refusal or self._registry.refusal(self, self._request.path)
                if refusal is not None:
                    self.refuse(refusal)
                    return
                if self._http.they_are_waiting_for_100_continue:
                    self._send_bytes(self._http.send(h11.InformationalResponse(status_code=100, headers=[])))
            elif isinstance(event, h11.Data):
                self._body_bytes += len(event.data)
                if self._body_bytes > self._registry.limits.body_bytes:
                    self.refuse(plain("no page here takes a body", 413))
            elif isinstance(event, h11.EndOfMessage):
                self._answer()
                if self._waiting:
                    return
                if self._received and not self._sender.busy:
                    # More requests have come with this one: let the other clients have a turn before it.
                    self._pause_reading()
                    self._registry.loop.call_soon(self._advance)
                    return
            elif isinstance(event, h11.ConnectionClosed):
                self.close()
                return
            else:
                self._resume_reading()
                return

    def _open_for_requests(self) -> bool:
        transport = self._transport
        return (
            transport is not None
            and not transport.is_closing()
            and not self._sender.busy
            and not self._waiting
            and not self._lingering
        )

    def _answer(self) -> None:
        if self._request is None:
            raise RuntimeError("h11 ended a message that it had not begun")
        request = self._request
        verdict = None
        if self._gate is not None:
            self._era = self._gate.era
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
        """The gate knows now; the client may have gone meanwhile."""
        self._waiting = False
        if self._gate is not None and self._open_for_requests():
            self._respond(request, None if verdict.result() else self._gate.refused)
            self._advance()

    def _respond(self, request: Request, refusal: Response | None) -> None:
        answer = self._routes.respond(request) if refusal is None else refusal
        if isinstance(answer, Response):
            self._send(request, answer)
        else:
            self._computing = True
            self._wait(self._registry.limits.answer_seconds)
            answer.add_done_callback(partial(self._computed, request))

    def _computed(self, request: Request, answer: Later) -> None:
        """The answer is there. Who asked may have gone, or have been told that it took too long."""
        response = arrived(request, answer)
        if not self._computing:
            return
        self._waiting = self._computing = False
        if self._open_for_requests():
            self._send(request, response)
            self._advance()

    # Writing answers.

    def _send(self, request: Request, response: Response) -> None:
        if self._gate is not None:
            response = self._gate.dress(response)
        self.deadline = self._registry.now + self._registry.limits.response_seconds
        close, head_only = self._registry.stopping, request.method == "HEAD"
        if self._sender.begin(response, close=close, head_only=head_only):
            self._next_request()
            return
        if not self._sender.streaming:
            self._pause_reading()
            self._registry.backlog.hold(self, response.body)
            return
        self._read_beside_stream()
        if not self._sender.behind:
            self.deadline = inf

    def _send_bytes(self, data: bytes | memoryview | None) -> None:
        # To one that has gone asyncio takes what is written, with a line in the log for each piece.
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _go_on(self) -> None:
        """The client has taken what there was, or its stream has more; then turn to the next request."""
        if self._closing:
            return
        if self._sender.streaming and self._outdated:
            # The connection, too: a client's certificate is asked for in a new handshake alone.
            self._sender.end_stream()
            self.deadline = self._registry.now + self._registry.limits.response_seconds
            self.close()
        elif self._sender.busy and self._sender.go_on():
            self._next_request()
            self._advance()

    @property
    def _closing(self) -> bool:
        """The connection has ended or is about to."""
        return self._transport is None or self._transport.is_closing()

    @property
    def _outdated(self) -> bool:
        """The gate asks anew who is there since this answer began."""
        return self._gate is not None and self._gate.era != self._era

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
        if transport is not None and not transport.is_reading() and not transport.is_closing():
            transport.resume_reading()
