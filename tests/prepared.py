"""Starts gpuledger as a fork of a process that has imported it.

Importing takes most of the CPU time of a short run. A fork is a process with its own pid, environment,
signals and output, in which the same code runs as after `python -m gpuledger`. Not for tests of what a start
determines: memory, command line, open files, and variables that the interpreter or the linker reads.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NoReturn

# Variables that have no effect on a process that has already started.
_TOO_LATE = ("PYTHON", "LD_", "MALLOC_", "GLIBC_")
# The exception: a process is prepared for the linker to find the test driver.
_DRIVER = ("LD_LIBRARY_PATH", str(Path(__file__).parent / "nvml" / "build"))
MODULE = (sys.executable, "-m", "gpuledger")
# What most programs import when they need it.
_USED = (
    "gpuledger.dialects.native.dialect",
    "gpuledger.ledger.store.store",
    "gpuledger.sources.simulator.scenario_parser",
    "gpuledger.sources.simulator.simulator",
    "yaml",
)
# Asyncio is imported without TLS in `serve`, and with it in other commands.
_KINDS = {
    "serve": ("cli.serve", "web.api.handlers", "web.page.static_files"),
    "other": tuple(
        f"cli.{command}"
        for command in (
            "agent",
            "books",
            "collect",
            "doctor",
            "explain",
            "fleet",
            "free",
            "operator",
            "report",
            "top",
        )
    ),
}


def is_preparable(env: Mapping[str, str]) -> bool:
    """Whether a program with these additional variables may be a fork."""
    return not any(name.startswith(_TOO_LATE) for name, value in env.items() if (name, value) != _DRIVER)


class PreparedProcess:
    """A running program with the methods of `subprocess.Popen` that tests use.

    `command` is `python -m gpuledger ...` or `python SCRIPT ...`; stdout and stderr are file descriptors.
    `user`: uid and groups, of which the first is the primary one; it must be able to read the source.
    `umask`: of the process, if it is not that of the tests.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        stdout: int,
        stderr: int,
        user: tuple[int, Sequence[int]] | None = None,
        umask: int | None = None,
    ) -> None:
        self.args = list(command)
        module = tuple(command[1:3]) == MODULE[1:]
        script, arguments = ("", self.args[3:]) if module else (self.args[1], self.args[2:])
        kind = "serve" if arguments[:1] == ["serve"] or arguments[:1] == [] else "other"
        self._exit, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with theirs:
            # Other users may not search the working directory.
            folder = str(Path.cwd()) if user is None else "/"
            request = json.dumps([script, arguments, dict(env), folder, user, umask]).encode()
            # Nor may they read root's interpreter: theirs finds the packages by this variable.
            variables = tuple(
                one for one in env.items() if one == _DRIVER or (user and one[0] == "PYTHONPATH")
            )
            prepared = _prepared(kind, command[0], variables)
            socket.send_fds(prepared, [request], [theirs.fileno(), stdout, stderr])
        self.pid = int(self._exit.recv(20))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code; None while the program runs."""
        return self._read_exit(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit; raises TimeoutExpired."""
        code = self._read_exit(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the program has exited."""
        if self.poll() is None:
            # Its exit is reported a moment after it.
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _read_exit(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            poll = select.poll()
            poll.register(self._exit, select.POLLIN)
            if not poll.poll(None if timeout is None else timeout * 1000):
                return None
            self.returncode = int(self._exit.recv(20))
            self._exit.close()
        return self.returncode


def run_prepared(
    command: Sequence[str],
    env: Mapping[str, str],
    timeout: float,
    user: tuple[int, Sequence[int]] | None = None,
    umask: int | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program until it exits; raises TimeoutExpired like `subprocess.run`. See PreparedProcess."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = PreparedProcess(command, env, out.fileno(), err.fileno(), user, umask)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(process.args, code, out.read(), err.read())


def prepare() -> None:
    """Start the processes now, without and with the test driver: later forks of this process share them."""
    # The linker never looks again into a folder that it has once not found.
    Path(_DRIVER[1]).mkdir(parents=True, exist_ok=True)
    for kind in _KINDS:
        _prepared(kind, sys.executable, ())
        _prepared(kind, sys.executable, (_DRIVER,))


@cache
def _prepared(kind: str, python: str, variables: tuple[tuple[str, str], ...]) -> socket.socket:
    """The socket of a prepared process, which ends when the socket is closed."""
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    with theirs:
        command = [python, __file__, kind, str(theirs.fileno())]
        env = {**os.environ, **dict(variables)}
        process = subprocess.Popen(command, env=env, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _serve(kind: str, requests: socket.socket) -> None:
    from gpuledger.cli.main import load_asyncio_without_tls

    if kind == "serve":
        load_asyncio_without_tls()
    for module in (*_USED, *(f"gpuledger.{name}" for name in _KINDS[kind])):
        import_module(module)
    gc.freeze()
    while True:
        # The forks that have reported an exit. Reaped, so that their CPU time counts as that of the tests.
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        request, files, _, _ = socket.recv_fds(requests, 1 << 20, 3)
        if not request:
            return
        if os.fork() == 0:
            requests.close()
            _run(request, *files)
        for file in files:
            os.close(file)


def _run(request: bytes, connection: int, out: int, err: int) -> None:
    """Run the program in a fork; send its pid and exit code."""
    pid = os.fork()
    if pid:
        os.close(out)
        os.close(err)
        os.write(connection, b"%d" % pid)
        _, status = os.waitpid(pid, 0)
        os.write(connection, b"%d" % os.waitstatus_to_exitcode(status))
        os._exit(0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.closerange(3, max(connection, out, err) + 1)
    script, arguments, env, folder, user, umask = json.loads(request)
    os.chdir(folder)
    if umask is not None:
        os.umask(umask)
    if user is not None:
        _become(*user)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = [script or "gpuledger", *arguments]
    code = 1
    try:
        if script:
            runpy.run_path(script, run_name="__main__")
        else:
            runpy.run_module("gpuledger", run_name="__main__")
        code = 0
    except SystemExit as done:
        code = done.code if isinstance(done.code, int) else 0 if done.code is None else 1
    except BaseException:  # noqa: BLE001  (like the interpreter)
        sys.excepthook(*sys.exc_info())
    finally:
        finish(code)


def _become(uid: int, groups: Sequence[int]) -> None:
    """Give up root. Its own files in /proc are this user's then, as after starting a program."""
    from ctypes import CDLL

    prctl = CDLL(None).prctl
    # PR_SET_NO_NEW_PRIVS
    prctl(38, 1, 0, 0, 0)
    os.setgroups(groups[1:])
    os.setgid(groups[0])
    os.setuid(uid)
    # PR_SET_DUMPABLE
    prctl(4, 1)


def finish(code: int) -> NoReturn:
    """End like the interpreter: wait for threads, call exit handlers, flush."""
    import threading

    threading._shutdown()  # type: ignore[attr-defined]  # what the interpreter calls when it ends
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 120
    os._exit(code)


if __name__ == "__main__":
    # The folder of this file, where `python -m gpuledger` has the working directory.
    del sys.path[0]
    _serve(sys.argv[1], socket.socket(fileno=int(sys.argv[2])))
