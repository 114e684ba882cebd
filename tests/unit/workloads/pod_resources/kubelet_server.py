"""A gRPC server in place of the kubelet's pod-resources socket, and a server that sends arbitrary bytes."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import grpc

from gpuledger.workloads.pod_resources import kubelet_pb2 as wire
from running import PATIENCE

Answer = Callable[[bytes], bytes]


def pod(
    name: str,
    *devices: str,
    namespace: str = "team",
    container: str = "main",
    resource: str = "nvidia.com/gpu",
) -> wire.PodResources:
    held = wire.ContainerDevices(resource_name=resource, device_ids=devices)
    return wire.PodResources(
        name=name,
        namespace=namespace,
        containers=[wire.ContainerResources(name=container, devices=[held])],
    )


def listed(*pods: wire.PodResources) -> bytes:
    return wire.ListPodResourcesResponse(pod_resources=pods).SerializeToString()


class Refusal(Exception):
    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Service(grpc.GenericRpcHandler):
    def __init__(self, answers: dict[str, Answer]) -> None:
        self._answers = answers

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        service, _, call = details.method.rpartition("/")
        answer = self._answers.get(call)
        if service != "/v1.PodResourcesLister" or answer is None:
            return None

        def serve(request: bytes, context: grpc.ServicerContext) -> bytes:
            try:
                return answer(request)
            except Refusal as refusal:
                context.abort(refusal.code, str(refusal))
                raise

        return grpc.unary_unary_rpc_method_handler(serve)


@contextmanager
def kubelet(path: Path, **answers: Answer) -> Iterator[None]:
    """A kubelet that serves the methods in `answers`; all others are UNIMPLEMENTED."""
    options = [("grpc.max_send_message_length", -1)]
    server = grpc.server(futures.ThreadPoolExecutor(2), handlers=[_Service(answers)], options=options)
    server.add_insecure_port(f"unix://{path}")
    server.start()
    try:
        yield
    finally:
        server.stop(0).wait()
        path.unlink(missing_ok=True)


@contextmanager
def raw_server(path: Path, *answers: bytes, hang: bool = False) -> Iterator[None]:
    """Accepts one connection, reads, sends `answers`, and closes it; or keeps it open until the test ends."""
    ended = Event()
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()

    def serve() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(65536)
            for answer in answers:
                connection.sendall(answer)
            if hang:
                ended.wait(PATIENCE)
            else:
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass

    thread = Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(PATIENCE)
        listening.close()
