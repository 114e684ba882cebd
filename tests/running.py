"""Start, wait for and stop real programs under test."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

import httpx

from prepared import MODULE, PreparedProcess, is_preparable, run_prepared

T = TypeVar("T")
# Long: a machine of CI may be slow, and a test that passes waits no longer for it.
PATIENCE = 180.0


def wait_until(condition: Callable[[], T], what: str, patience: float = PATIENCE) -> T:
    """Poll until the condition is true; returns its value. Polls less and less often, to save CPU time."""
    deadline = time.monotonic() + patience
    pause = 0.01
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"timed out after {patience} s: {what}"
        time.sleep(pause)
        pause = min(1.3 * pause, 0.1)


def failures(items: Iterable[T], check: Callable[[T], object]) -> dict[T, str]:
    """Return the items that fail a check, each with its error."""
    found = {}
    for item in items:
        try:
            check(item)
        except AssertionError as error:
            found[item] = str(error)
    return found


def assert_each(items: Iterable[T], check: Callable[[T], object]) -> None:
    """Check every item; fails with the errors of all items that fail."""
    failed = failures(items, check)
    assert not failed, "\n".join(f"{item}: {error}" for item, error in failed.items())


def wait_for_each(items: Iterable[T], check: Callable[[T], object]) -> None:
    """Repeat a check until every item has passed once; fails with the errors of all items that have not."""
    failed = dict.fromkeys(items, "")

    def have_all_passed() -> bool:
        nonlocal failed
        failed = failures(failed, check)
        return not failed

    with suppress(AssertionError):
        wait_until(have_all_passed, "every item")
    assert_each(failed, check)


def gpuledger(*arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command of gpuledger until it exits."""
    env = env or {}
    if is_preparable(env):
        return run_prepared([*MODULE, *arguments], {**os.environ, **env}, PATIENCE)
    return subprocess.run(
        [*MODULE, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        timeout=PATIENCE,
        check=False,
    )


def one_line(done: subprocess.CompletedProcess[str], code: int) -> str:
    """The only line on stderr of a command that exited with this code."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line


@cache
def _client() -> httpx.Client:
    """A client that keeps no connection. Making one takes as long as a request, and many tests poll.

    Does not load CA certificates, which would take ten times as long.
    """
    return httpx.Client(trust_env=False, verify=False, limits=httpx.Limits(max_keepalive_connections=0))


def get(url: str, **options: Any) -> httpx.Response:
    """Send a GET to a program on this machine. One that is never answered leaves time to wait for others."""
    return _client().get(url, **{"timeout": PATIENCE / 3} | options)


class Program:
    """A running program with its lines on stderr. `prepared`: see prepared.py, if the variables allow it."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str] | None = None, *, prepared: bool = False
    ) -> None:
        self.lines: list[str] = []
        self.process: subprocess.Popen[str] | PreparedProcess
        variables = {**os.environ, **(env or {})}
        reading, writing = os.pipe()
        self._stderr = os.fdopen(reading)
        try:
            if prepared and is_preparable(env or {}):
                with Path(os.devnull).open("wb") as nothing:
                    self.process = PreparedProcess(command, variables, nothing.fileno(), writing)
            else:
                self.process = subprocess.Popen(
                    command, stderr=writing, stdout=subprocess.DEVNULL, text=True, env=variables
                )
        finally:
            os.close(writing)
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._stderr:
            self.lines.append(line.rstrip("\n"))

    def wait_line(self, pattern: str) -> re.Match[str]:
        def found() -> re.Match[str] | None:
            for line in tuple(self.lines):
                if match := re.search(pattern, line):
                    return match
            assert self.process.poll() is None, "\n".join(["exited early:", *self.lines])
            return None

        return wait_until(found, f"a line like {pattern!r} in {self.lines}")

    def wait_answer(self, url: str) -> None:
        """Wait until a GET succeeds."""

        def answers() -> bool:
            assert self.process.poll() is None, "\n".join(["exited early:", *self.lines])
            try:
                return get(url).is_success
            except httpx.TransportError:
                return False

        wait_until(answers, f"an answer of {url}")

    def stop(self) -> int:
        self.process.terminate()
        try:
            return self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.process.wait()
            self._reader.join(5)
            self._stderr.close()


class Server(Program):
    """`gpuledger serve` on a free port. `inside` is the prefix of a command that runs in other namespaces."""

    def __init__(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        inside: Sequence[str] = (),
        prepared: bool = False,
    ) -> None:
        command = [*MODULE, "serve", "--listen-address", "127.0.0.1:0", *arguments]
        super().__init__([*inside, *command], env, prepared=prepared)
        self.port = int(self.wait_line(r"listening on \S+ port (\d+)")[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def get(self, path: str = "/metrics", port: str = "", **headers: str) -> httpx.Response:
        url = f"http://127.0.0.1:{port or self.port}{path}"
        return get(url, headers=headers)

    def wait_ticks(self, number: int = 1) -> str:
        """Wait for this many ticks; returns the page of native metrics."""

        def ready() -> str | None:
            body = self.get("/metrics/native").text
            match = re.search(r"^gpuledger_ticks_total (\d+)$", body, re.MULTILINE)
            # While a tick is late, as on a busy machine, the page lacks the devices.
            in_time = "\ngpuledger_tick_stalled 0\n" in body
            return body if match and int(match[1]) >= number and in_time else None

        return wait_until(ready, f"{number} ticks")


@contextmanager
def serving(
    *arguments: str, env: Mapping[str, str] | None = None, inside: Sequence[str] = ()
) -> Iterator[Server]:
    server = Server(*arguments, env=env, inside=inside)
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def serving_prepared(*arguments: str, env: Mapping[str, str] | None = None) -> Iterator[Server]:
    """Like `serving`, for tests of what is served, not of the process: see prepared.py."""
    server = Server(*arguments, env=env, prepared=True)
    try:
        yield server
    finally:
        server.stop()


class Prometheus(Program):
    """A real Prometheus with the given scrape_configs."""

    def __init__(self, folder: Path, config: str, port: int, *flags: str) -> None:
        file = self._file = folder / "prometheus.yml"
        file.write_text(config)
        self.url = f"http://127.0.0.1:{port}"
        super().__init__(
            [
                "prometheus",
                f"--config.file={file}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--web.enable-lifecycle",
                *flags,
            ]
        )
        self.wait_answer(self.url + "/-/ready")

    def reload(self, config: str) -> None:
        """Replace the configuration. Without targets and rules, an idle Prometheus needs no CPU time."""
        self._file.write_text(config)
        answer = httpx.post(self.url + "/-/reload", trust_env=False, verify=False, timeout=PATIENCE)
        assert answer.is_success, answer.text

    def query(self, expression: str, at: float | None = None) -> list[dict[str, Any]]:
        """The rows of an instant query, now or at this Unix time."""
        when = {} if at is None else {"time": f"{at:.3f}"}
        answer = get(self.url + "/api/v1/query", params={"query": expression, **when}).json()
        assert answer["status"] == "success", answer
        return list(answer["data"]["result"])

    def wait_query(self, expression: str) -> list[dict[str, Any]]:
        return wait_until(lambda: self.query(expression), f"an answer to {expression}")


@contextmanager
def prometheus(config: str, *flags: str) -> Iterator[Prometheus]:
    with tempfile.TemporaryDirectory(prefix="gpuledger-prometheus-") as folder:
        program = Prometheus(Path(folder), config, free_port(), *flags)
        try:
            yield program
        finally:
            program.stop()


@contextmanager
def victoria_metrics(*flags: str) -> Iterator[str]:
    """The URL of a VictoriaMetrics that exposes new samples immediately."""
    address = f"127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory(prefix="gpuledger-victoria-") as folder:
        place = (f"-httpListenAddr={address}", f"-storageDataPath={folder}")
        program = Program(
            ["victoria-metrics", *place, "-retentionPeriod=1", "-search.latencyOffset=0s", *flags]
        )
        try:
            program.wait_answer(f"http://{address}/health")
            yield f"http://{address}"
        finally:
            program.stop()


def free_port() -> int:
    """A port that is currently free."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def create_blocks(file: Path, folder: Path) -> None:
    """Store the samples of an OpenMetrics file as blocks of Prometheus.

    promtool reads the file once a block, and by default a block is two hours.
    """
    command = ["promtool", "tsdb", "create-blocks-from", "--max-block-duration=48h", "openmetrics"]
    subprocess.run([*command, str(file), str(folder)], check=True, capture_output=True)


def promtool_check(text: str) -> tuple[int, list[str]]:
    """`promtool check metrics`: its exit code and the lint findings; fails if the page does not parse."""
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 3), done.stderr
    return done.returncode, sorted(line for line in done.stderr.splitlines() if line.strip())
