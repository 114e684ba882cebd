"""A lab of real nodes with simulated GPUs, and the fleet that reads them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from running import MODULE, Program, Server, serving_prepared, wait_until
from scripted_target import Answer, scripted

# Ticks of less than a minute of simulated time: intervals above would be unobserved.
SPEED = 28
SCENARIO = """\
gpus:
  - model: {model}
    processes:
      - {{name: python3, load: {load}, pod: {{namespace: {namespace}, name: t-{number}, container: c}}}}
  - model: {model}
    processes:
      - {{name: notebook, load: 0, user: user{user}}}
  - model: {model}
"""
MODELS = ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA L4")
PRICES = ("--price.gpu-hour", "2.40", "--price.kwh", "0.30", "--price.currency", "EUR")
# A node of an earlier version, of which the API had fewer keys, and one of a later version.
OLD = {
    "version": "v1",
    "node": "old",
    "unix": 0,
    "source": {"name": "nvml"},
    "status": {"readings": True},
    "devices": [{"uuid": "GPU-old", "gpu": "0", "name": "Tesla V100", "state": "idle", "up": True}],
}


def scenario(number: int) -> str:
    return SCENARIO.format(
        model=MODELS[number % 3],
        load=0.2 + 0.01 * number,
        namespace=("vision", "nlp", "speech")[number % 3],
        number=number,
        user=number % 7,
    )


class FleetServer(Server):
    """`gpuledger fleet` with short intervals."""

    def __init__(self, listed: Path) -> None:
        flags = ("--listen-address", "127.0.0.1:0", "--interval", "1s", "--timeout", "2s", "--refresh", "1s")
        command = [*MODULE, "fleet", "--nodes-file", str(listed), *flags, *PRICES]
        Program.__init__(self, command, prepared=True)
        self.port = int(self.wait_line(r"listening on 127\.0\.0\.1 port (\d+)")[1])
        self.url = f"http://127.0.0.1:{self.port}"


class Lab:
    """The nodes, and the fleet that reads them."""

    def __init__(self, nodes: list[Server], fleet: Server, folder: Path) -> None:
        self.nodes, self.fleet, self.folder = nodes, fleet, folder

    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = self.fleet.get("/api/v1/fleet").json()
        return found

    def states(self) -> Counter[str]:
        return Counter(gpu["state"] for node in self.json()["nodes"] for gpu in node["gpus"])


@contextmanager
def running_lab(folder: Path, count: int) -> Iterator[Lab]:
    """A fleet of so many nodes, of an old one, and of one with a later version of the API."""
    with ExitStack() as stack:
        nodes = []
        for number in range(count):
            file = folder / f"{number}.yaml"
            file.write_text(scenario(number))
            flags = ("--source", f"simulator:{file}", "--interval", "2s", "--speed", str(SPEED))
            env = {"GPULEDGER_NODE_NAME": f"gpu-{number:02}", "GPULEDGER_CONTROL_SOCKET": "none"}
            state = ("--state-dir", str(folder / f"state-{number}"))
            nodes.append(stack.enter_context(serving_prepared(*flags, *state, env=env)))
        old = stack.enter_context(scripted(lambda _: Answer(json.dumps(OLD), "application/json")))
        later = stack.enter_context(scripted(lambda _: Answer('{"version": "v2"}', "application/json")))
        listed = folder / "nodes"
        urls = [*(node.url for node in nodes), *(f"http://127.0.0.1:{one.port}" for one in (old, later))]
        listed.write_text("\n".join(urls) + "\n")
        fleet = FleetServer(listed)
        stack.callback(fleet.stop)
        made = Lab(nodes, fleet, folder)
        wait_until(lambda: sum(made.states().values()) == 3 * count + 1, "the fleet has read all nodes")
        yield made
