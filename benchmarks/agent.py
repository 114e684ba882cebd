"""Compares `gpuledger agent`, Prometheus in agent mode and vmagent on the same targets, one after the other.

    python benchmarks/agent.py [--profile small|large|labels|all] [--seconds 60] [--runs 5] [--only NAMES]

A fifth of the values changes from scrape to scrape; in the profile "labels" also the pod of a fiftieth of
the series. Targets and receiver run in separate processes; measured are the agent's CPU time and memory,
after the first two intervals, for a whole number of intervals. The agents take turns; the table has the
median of each agent's runs. "Ratio" is the median, over the runs, of gpuledger's samples per CPU-second
divided by the other agent's in the same run. "Complete" is the share of that window's samples, by
timestamp, that were delivered one interval after its end; late scrapes at an edge of the window make it
slightly more or less than 100 %. `--write` writes the table to a file.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import Array, Process
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import yaml

from tables import create_parser, print_table

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]

from running import free_port  # noqa: E402  (after the path is set)

MARKS = ("<!-- agent: begin -->", "<!-- agent: end -->")
MIB = 1 << 20
AGENTS = ("gpuledger", "prometheus", "vmagent")
PROFILES = {"small": (200, 500, 5, False), "large": (1000, 500, 15, False), "labels": (200, 500, 5, True)}
_VARIANTS = 20


def _head(number: int, pod: str) -> str:
    family, gpu = divmod(number, 8)
    return (
        f'DCGM_FI_DEV_FIELD_{family}{{gpu="{gpu}",UUID="GPU-5f3a9c1e-7b2d-4e8f-9a1b-2c3d4e5f6a0{gpu}",'
        f'device="nvidia{gpu}",modelName="NVIDIA H100 80GB HBM3",Hostname="gpu-node",pod="{pod}-{gpu}"}}'
    )


def pages(series: int, new_labels: bool = False) -> list[bytes]:
    """Return a cycle of responses; a fifth of the values differs from one to the next.

    With `new_labels`, a fiftieth of the series changes its pod label as well.
    """
    chance = random.Random(1)
    heads, values = [], []
    for number in range(series):
        heads.append(_head(number, "train"))
        values.append(chance.randrange(10**6))
    found = []
    for variant in range(_VARIANTS):
        if new_labels:
            for number in chance.sample(range(series), series // 50):
                heads[number] = _head(number, f"train-{variant}")
        for number in chance.sample(range(series), series // 5):
            values[number] = chance.randrange(10**6)
        lines = []
        for number, (head, value) in enumerate(zip(heads, values, strict=True)):
            if number % 8 == 0:
                name = head.partition("{")[0]
                lines += [f"# HELP {name} a field", f"# TYPE {name} gauge"]
            lines.append(f"{head} {value}")
        body = ("\n".join(lines) + "\n").encode()
        head_bytes = (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: %d\r\n\r\n"
        )
        found.append(head_bytes % len(body) + body)
    return found


def serve_targets(port: int, series: int, new_labels: bool) -> None:
    """Serve targets on every address of 127.0.0.0/8."""
    answers = pages(series, new_labels)

    class Target(asyncio.Protocol):
        turn = 0

        def connection_made(self, transport: Any) -> None:
            self.transport, self.pending = transport, b""

        def data_received(self, data: bytes) -> None:
            self.pending += data
            if self.pending.endswith(b"\r\n\r\n"):
                self.pending = b""
                self.transport.write(answers[self.turn % _VARIANTS])
                self.turn += 1

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(Target, "0.0.0.0", port, backlog=2048)
        await server.serve_forever()

    asyncio.run(run())


def timestamps(payload: bytes) -> Iterator[int]:
    """Yield the timestamp (unix ms) of each series of a remote-write request with one sample per series."""
    at = 0
    while at < len(payload):
        series, size, shift = payload[at] == 10, 0, 0
        at += 1
        while True:
            byte = payload[at]
            at += 1
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        at += size
        if series:
            # The series ends with its sample, and that with its timestamp: a six-byte varint until 2109.
            yield sum((byte & 127) << 7 * position for position, byte in enumerate(payload[at - 6 : at]))


def serve_sink(port: int, samples: Any, window: Any) -> None:
    """Run a remote-write receiver that counts all samples and those with a timestamp in the window."""
    from cramjam import snappy

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
                body = await reader.readexactly(length)
                begin, end = window
                times = tuple(timestamps(bytes(snappy.decompress_raw(body))))
                samples[0] += len(times)
                samples[1] += sum(begin <= moment < end for moment in times)
                writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        except (asyncio.IncompleteReadError, OSError):
            writer.close()

    async def run() -> None:
        server = await asyncio.start_server(client, "127.0.0.1", port)
        await server.serve_forever()

    asyncio.run(run())


@dataclass
class Result:
    """Samples, CPU seconds, resident MiB, share of expected samples that arrived, and duration in seconds."""

    agent: str
    samples: float
    cpu: float
    resident: float
    complete: float
    seconds: float

    @property
    def per_cpu_second(self) -> float:
        """Samples per second of CPU time."""
        return self.samples / self.cpu


def command(agent: str, folder: Path, targets: Sequence[str], interval: int, sink: str) -> list[str]:
    """Write the agent's configuration for these targets and return its command line."""
    port = free_port()
    if agent == "gpuledger":
        config: dict[str, Any] = {
            "features": {
                "openAgent": {
                    "globalInterval": f"{interval}s",
                    "targets": [
                        {
                            "targetName": "bench",
                            "type": "StaticEndpoints",
                            "endpoints": [{"address": target, "honorLabels": True} for target in targets],
                        }
                    ],
                }
            },
            "remote_write": [{"url": sink}],
        }
        file = folder / "agent.yaml"
        file.write_text(yaml.safe_dump(config))
        words = [sys.executable, "-m", "gpuledger", "agent", "--config", str(file)]
        return [*words, "--queue-directory", str(folder / "queue"), "--listen-address", f"127.0.0.1:{port}"]
    config = {
        "global": {"scrape_interval": f"{interval}s", "scrape_timeout": f"{min(10, interval)}s"},
        "scrape_configs": [
            {"job_name": "bench", "honor_labels": True, "static_configs": [{"targets": list(targets)}]}
        ],
    }
    file = folder / "prometheus.yml"
    if agent == "vmagent":
        file.write_text(yaml.safe_dump(config))
        where = [f"-remoteWrite.tmpDataPath={folder / 'queue'}", f"-httpListenAddr=127.0.0.1:{port}"]
        return ["vmagent", f"-promscrape.config={file}", f"-remoteWrite.url={sink}", *where]
    config["remote_write"] = [{"url": sink}]
    file.write_text(yaml.safe_dump(config))
    where = [f"--storage.agent.path={folder / 'wal'}", f"--web.listen-address=127.0.0.1:{port}"]
    return ["prometheus", "--enable-feature=agent", f"--config.file={file}", *where]


def measure(agent: str, count: int, series: int, interval: int, new_labels: bool, seconds: float) -> Result:
    """Measure one agent."""
    samples, window = Array("q", 2), Array("q", 2)
    targets_port, sink_port = free_port(), free_port()
    helpers = [
        Process(target=serve_targets, args=(targets_port, series, new_labels), daemon=True),
        Process(target=serve_sink, args=(sink_port, samples, window), daemon=True),
    ]
    for helper in helpers:
        helper.start()
    targets = [f"127.1.{number // 250}.{number % 250 + 1}:{targets_port}" for number in range(count)]
    with tempfile.TemporaryDirectory() as name:
        words = command(agent, Path(name), targets, interval, f"http://127.0.0.1:{sink_port}/write")
        program = subprocess.Popen(words, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            watched = psutil.Process(program.pid)
            # Warm-up: every target is scraped twice, so that its page is cached.
            time.sleep(2.5 * interval + 2)
            intervals = max(1, round(seconds / interval))
            begin = round(time.time() * 1000)
            window[:] = begin, begin + intervals * interval * 1000
            began, before, first = time.monotonic(), watched.cpu_times(), samples[0]
            resident = 0
            while (left := began + intervals * interval - time.monotonic()) > 0:
                # Sampling interval of resident memory; the highest value is reported.
                time.sleep(min(0.5, left))
                resident = max(resident, watched.memory_info().rss)
            after, last = watched.cpu_times(), samples[0]
            # Samples of the window may still be in flight.
            time.sleep(interval)
        finally:
            program.terminate()
            program.wait()
            for helper in helpers:
                helper.terminate()
                helper.join()
    cpu = after.user + after.system - before.user - before.system
    # Each scrape adds five report samples (up, scrape_*).
    expected = intervals * count * (series + 5)
    return Result(agent, last - first, cpu, resident / MIB, samples[1] / expected, intervals * interval)


def table(profiles: Sequence[str], agents: Sequence[str], seconds: float, runs: int) -> Iterator[str]:
    """Yield a table row for each profile and agent."""
    yield (
        "| targets x series, interval | agent | samples per CPU-second "
        "| CPU % | resident MiB | complete | ratio |"
    )
    yield "|---|---|---|---|---|---|---|"
    for profile in profiles:
        count, series, interval, new_labels = PROFILES[profile]
        size = f"{count:,} x {series}, {interval} s{', new labels' if new_labels else ''}"
        rounds = [
            {agent: measure(agent, count, series, interval, new_labels, seconds) for agent in agents}
            for _ in range(runs)
        ]
        for agent in agents:
            found = [results[agent] for results in rounds]
            ratios = [results[agents[0]].per_cpu_second / results[agent].per_cpu_second for results in rounds]
            yield (
                f"| {size} | {agent} "
                f"| {median(result.per_cpu_second for result in found):,.0f} "
                f"| {median(100 * result.cpu / result.seconds for result in found):.1f} "
                f"| {median(result.resident for result in found):.0f} "
                f"| {median(result.complete for result in found):.1%} | {median(ratios):.2f} |"
            )


def main() -> None:
    """Measure, print the table and, with --write, write it to a file."""
    flags = create_parser(__doc__)
    flags.add_argument("--profile", choices=(*PROFILES, "all"), default="all")
    flags.add_argument("--seconds", type=float, default=60.0, help="duration of each measurement")
    flags.add_argument("--runs", type=int, default=1, help="measurements of each agent")
    flags.add_argument("--only", default=",".join(AGENTS), help="comma-separated agents")
    given = flags.parse_args()
    profiles = tuple(PROFILES) if given.profile == "all" else (given.profile,)
    print_table(table(profiles, given.only.split(","), given.seconds, given.runs), given.write, MARKS)


if __name__ == "__main__":
    main()
