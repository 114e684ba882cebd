"""Socket activation: `serve` answers on the sockets that systemd passes (sd_listen_fds)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from running import get, wait_for_each, wait_until

# Starts a service as systemd does: the sockets are descriptors from 3 on, LISTEN_PID is the process itself.
# Arguments: the kind of each socket, and after -- those of `serve`. Prints the ports.
LAUNCHER = """
import os, socket, sys
at = sys.argv.index("--")
kinds, flags = sys.argv[1:at], sys.argv[at + 1:]
made = [socket.create_server(("127.0.0.1", 0)) if kind == "tcp" else socket.socketpair()[0] for kind in kinds]
# Above all targets, because one of them may be a target.
high = [os.dup2(one.fileno(), 100 + number) for number, one in enumerate(made)]
print(*(one.getsockname()[1] if kind == "tcp" else 0 for kind, one in zip(kinds, made)), flush=True)
for number, descriptor in enumerate(high, 3):
    os.dup2(descriptor, number, inheritable=True)
os.environ |= {"LISTEN_FDS": str(len(kinds)), "LISTEN_PID": str(os.getpid())}
command = [sys.executable, "-m", "gpuledger", "serve", "--source", "simulator", "--state-dir", "none", *flags]
os.execv(sys.executable, command)
"""


@contextmanager
def activated(*kinds_and_flags: str) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    command = [sys.executable, "-c", LAUNCHER, *kinds_and_flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        try:
            yield program, [int(word) for word in program.stdout.readline().split()]
        finally:
            program.terminate()


def _has_readings(page: str) -> None:
    assert "nvidia_smi_gpu_info{" in page


def test_each_socket_is_served_and_no_address_is_opened() -> None:
    with activated("tcp", "tcp", "--", "--web.systemd-socket", "--listen-address", "127.0.0.1:1") as (
        _,
        ports,
    ):
        urls = [f"http://127.0.0.1:{port}/metrics" for port in ports]
        wait_for_each(urls, lambda url: _has_readings(get(url).text))


def test_a_socket_has_the_dialects_of_the_address_with_its_port() -> None:
    with activated("tcp", "--", "--systemd-socket", "--listen-address", ":9=native,process") as (_, (port,)):
        page = wait_until(lambda: get(f"http://127.0.0.1:{port}/metrics").text, "the page")
        assert "gpuledger_build_info" in page
        assert "gpu_session_count" not in page


def test_without_a_socket_the_program_ends_with_one_line() -> None:
    for kinds, message in (
        ((), "systemd passed no socket"),
        (("pair",), "file descriptor 3 is no listening TCP"),
    ):
        with activated(*kinds, "--", "--systemd-socket") as (program, _):
            assert program.wait() == 1
            assert program.stderr is not None
            (line,) = program.stderr.read().splitlines()
            assert line.startswith("gpuledger: --systemd-socket: ")
            assert message in line
