"""A fake device plugin (v1beta1): advertises IDs as a resource, and sets a container's IDs in a variable.

    python device_plugin.py /var/lib/kubelet/device-plugins RESOURCE VARIABLE ID...

It encodes the few protobuf messages directly, without generated code.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from threading import Event

import grpc


def field(number: int, content: bytes | str) -> bytes:
    """Encoded length-delimited protobuf field."""
    data = content.encode() if isinstance(content, str) else content
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Number and content of each field of a message with only length-delimited fields."""
    at = 0
    while at < len(message):
        key, at = _read_varint(message, at)
        assert key & 7 == 2, f"wire type {key & 7} in {message!r}"
        size, at = _read_varint(message, at)
        yield key >> 3, message[at : at + size]
        at += size


def _varint(value: int) -> bytes:
    encoded = b""
    while value > 0x7F:
        encoded += bytes([value & 0x7F | 0x80])
        value >>= 7
    return encoded + bytes([value])


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def allocate_response(request: bytes, variable: str) -> bytes:
    """AllocateRequest{container_requests{devicesIDs}} to AllocateResponse{container_responses{envs}}."""
    response = b""
    for _, container in fields(request):
        ids = ",".join(identity.decode() for _, identity in fields(container))
        response += field(1, field(1, field(1, variable) + field(2, ids)))
    return response


class Plugin(grpc.GenericRpcHandler):
    """The service v1beta1.DevicePlugin."""

    def __init__(self, ids: list[str], variable: str) -> None:
        devices = (field(1, field(1, identity) + field(2, "Healthy")) for identity in ids)
        self._devices = b"".join(devices)
        self._variable = variable
        self.ended = Event()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        call = details.method.rpartition("/")[2]
        if call == "ListAndWatch":
            return grpc.unary_stream_rpc_method_handler(self._list)
        if call == "Allocate":
            return grpc.unary_unary_rpc_method_handler(
                lambda request, _: allocate_response(request, self._variable)
            )
        if call in ("GetDevicePluginOptions", "PreStartContainer"):
            return grpc.unary_unary_rpc_method_handler(lambda _request, _: b"")
        return None

    def _list(self, _request: bytes, _context: grpc.ServicerContext) -> Iterator[bytes]:
        yield self._devices
        self.ended.wait()


def serve_until_kubelet_restart(folder: Path, resource: str, variable: str, ids: list[str]) -> None:
    """Serve until the kubelet restarts: it then forgets its plugins and removes their sockets."""
    kubelet, own = folder / "kubelet.sock", folder / "gpuledger-tests.sock"
    born = kubelet.stat().st_ctime_ns
    plugin = Plugin(ids, variable)
    server = grpc.server(futures.ThreadPoolExecutor(4), handlers=[plugin])
    server.add_insecure_port(f"unix://{own}")
    server.start()
    with grpc.insecure_channel(f"unix://{kubelet}") as channel:
        register = channel.unary_unary("/v1beta1.Registration/Register")
        register(
            field(1, "v1beta1") + field(2, own.name) + field(3, resource), timeout=60, wait_for_ready=True
        )
    sys.stderr.write(f"registered {len(ids)} devices\n")
    # The kubelet does not notify plugins of a restart: its socket is removed or replaced.
    while own.exists() and kubelet.exists() and kubelet.stat().st_ctime_ns == born:
        time.sleep(0.1)
    plugin.ended.set()
    server.stop(0).wait()


def main() -> None:
    folder, resource, variable, *ids = sys.argv[1:]
    while True:
        try:
            serve_until_kubelet_restart(Path(folder), resource, variable, ids)
        except (OSError, grpc.RpcError) as error:
            sys.stderr.write(f"no kubelet yet: {error}\n")
            time.sleep(0.2)


if __name__ == "__main__":
    main()
