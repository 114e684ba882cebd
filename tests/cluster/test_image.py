"""The image of the Dockerfile, run with chroot in separate namespaces with a read-only root."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGTERM

import pytest

from cluster.dockerfile import Stage
from gpuledger import __version__
from running import Program, wait_until

MIB = 1 << 20
# A separate network namespace, so that ports are free. Only directories that a runtime mounts are writable.
_CONTAINER = """\
mount --bind "$1" "$1"; mount -o remount,ro,bind "$1"
mount -t proc proc "$1/proc"; mount -t tmpfs -o mode=$3 books "$1/var/lib/gpuledger"
[ "$3" = 700 ] || chown 65532:65532 "$1/var/lib/gpuledger"
root=$1 user=$2; shift 3
exec chroot --userspec="$user" "$root" "$@"
"""
_LOOPBACK = """\
import fcntl, socket, struct
with socket.socket() as one:
    fcntl.ioctl(one, 0x8914, struct.pack("16sh", b"lo", 1))
"""
_FETCH = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=20).read().decode())"


def image_command(stage: Stage, *command: str, user: str = "0:0") -> list[str]:
    """Command line that runs a command in the image."""
    mode = "700" if user == "0:0" else "755"
    namespaces = ("--mount", "--pid", "--net", "--fork", "--kill-child", "--")
    settings = [f"{key}={value}" for key, value in stage.config.env.items()]
    inside = ("/bin/sh", "-ec", _CONTAINER, "sh", str(stage.root), user, mode)
    return ["unshare", *namespaces, "env", "-i", *settings, *inside, *command]


def output_of(stage: Stage, *command: str, user: str = "0:0") -> str:
    words = image_command(stage, *command, user=user)
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Container:
    """A server that runs in the image."""

    def __init__(self, program: Program) -> None:
        self.program = program
        children = Path(f"/proc/{program.process.pid}/task/{program.process.pid}/children")
        self._first = int(wait_until(lambda: children.read_text().split(), "the container's process")[0])
        root = f"/proc/{self._first}/root"
        self._enter = ["nsenter", f"--target={self._first}", "--net", f"--root={root}", f"--wd={root}"]

    def stop(self) -> None:
        """Signal the server directly: unshare ignores signals while its child runs."""
        os.kill(self._first, SIGTERM)
        self.program.stop()

    def python(self, program: str, *arguments: str) -> str:
        command = [*self._enter, "/usr/bin/python3", "-c", program, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


@contextmanager
def serving(stage: Stage, *command: str, user: str = "0:0") -> Iterator[Container]:
    container = Container(Program(image_command(stage, *command, user=user)))
    try:
        container.program.wait_line(r"listening on")
        container.python(_LOOPBACK)
        yield container
    finally:
        container.stop()


def files(stage: Stage) -> Iterator[Path]:
    for folder, _, names in os.walk(stage.root):
        yield from (Path(folder) / name for name in names)


def test_the_program_runs(images: dict[str, Stage]) -> None:
    assert output_of(images["gpuledger"], "gpuledger", "version").startswith(f"gpuledger {__version__} ")


def test_the_smi_image_serves_on_the_port_of_nvidia_gpu_exporter(
    images: dict[str, Stage],
) -> None:
    stage = images["smi"]
    with serving(stage, *stage.config.entrypoint, "--source", "simulator") as container:
        page = container.python(_FETCH, "http://127.0.0.1:9835/metrics")
    assert "\nnvidia_smi_power_draw_watts{" in page


def test_the_default_command_serves_on_port_9400(images: dict[str, Stage]) -> None:
    """The command line of document 003."""
    stage = images["gpuledger"]
    flags = ("--log-level=info", "--source=simulator")
    with serving(stage, *stage.config.entrypoint, *flags) as container:
        page = container.python(_FETCH, "http://127.0.0.1:9400/metrics")
    assert "\nmy_gpu_process_energy_joules{" in page


def test_it_runs_without_root_and_keeps_a_ledger_in_a_writable_directory(images: dict[str, Stage]) -> None:
    flags = ("--source=simulator", "--state-dir=/var/lib/gpuledger")
    with serving(images["gpuledger"], "gpuledger", *flags, user="65532:65532") as container:
        found = container.python("import os; print(os.listdir('/var/lib/gpuledger'))")
    assert "simulator-k8s-node.db" in found


@pytest.mark.parametrize("name", ["cc", "gcc", "pip", "pip3", "make", "hatchling"])
def test_it_contains_no_compiler_and_no_installer(images: dict[str, Stage], name: str) -> None:
    assert not [file for file in files(images["gpuledger"]) if file.name == name]


def test_its_modules_are_precompiled(images: dict[str, Stage]) -> None:
    """The root is read-only, so modules would be compiled at each start, which takes a second."""
    folder = images["gpuledger"].root / "opt/gpuledger/lib/python3.11/site-packages/gpuledger"
    missing = [
        source
        for source in folder.rglob("*.py")
        if not (source.parent / f"__pycache__/{source.stem}.cpython-311.pyc").exists()
    ]
    assert missing == []


def test_it_is_small(images: dict[str, Stage]) -> None:
    """Debian and Python take 116 MiB, gpuledger and its packages 45 MiB."""
    sizes = [file.lstat().st_size for file in files(images["gpuledger"]) if not file.is_symlink()]
    assert sum(sizes) < 170 * MIB


def test_its_labels_state_version_and_license(images: dict[str, Stage]) -> None:
    labels = images["gpuledger"].config.labels
    assert labels["org.opencontainers.image.version"] == __version__
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert json.dumps(labels).isascii()


def test_it_contains_no_other_files_of_the_checkout(images: dict[str, Stage]) -> None:
    names = {file.name for file in files(images["gpuledger"])}
    assert not names & {"conftest.py", "Makefile", "CHANGELOG.md", "requirements.lock"}
