"""A real node: containerd, kubelet and a fake device plugin, in separate mount and PID namespaces."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from signal import SIGKILL

import psutil
import yaml

from cluster import image
from cluster.cgroups import CgroupSubtree
from cluster.control_plane import ControlPlane, Json
from cluster.daemon import Daemon
from running import free_port, wait_until

HERE = Path(__file__).parent
RESOURCE = "nvidia.com/gpu"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
GPUS = tuple(f"GPU-5ca1ab1e-0000-4000-8000-{number:012x}" for number in range(8))

# Pods use the host's network, because pod networks would change settings of this machine. The node still
# needs a configured network to be ready. `restrict_oom_score_adj`: in some environments, a process cannot get
# a lower OOM score than its parent.
_NETWORK = {"cniVersion": "0.4.0", "name": "unused", "type": "loopback"}
_CONTAINERD = """\
version = 2
root = "{root}"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "{root}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{image}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    conf_dir = "{root}/networks"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
"""


class Node:
    """Node `name` of the cluster; `folder` contains its /var/lib, /var/log and /run."""

    def __init__(
        self,
        name: str,
        devices: Sequence[str],
        control_plane: ControlPlane,
        binaries: Path,
        folder: Path,
        logs: Path,
    ) -> None:
        self.name = name
        self.folder = folder
        self.kubelet_folder = folder / "var/lib/kubelet"
        self.pod_resources = self.kubelet_folder / "pod-resources/kubelet.sock"
        self.pod_logs = folder / "var/log"
        self.static_pods = folder / "static"
        self._devices = list(devices)
        self._api = control_plane
        self._logs = logs
        for place in ("var/lib/kubelet/device-plugins", "var/log", "run", "static", "containerd"):
            (folder / place).mkdir(parents=True)
        # The name must be unique below the root of the cgroups.
        self.cgroups = CgroupSubtree(folder.parent.name)
        # unshare ignores other signals while its child runs; SIGKILL also ends the child.
        ready = (folder / "ready").exists
        self._unshare = Daemon("node", self._unshare_command(), logs, ready=ready, stop_signal=SIGKILL)
        self._settings = self._write_settings(control_plane)
        self._binaries = binaries
        self._daemons: list[Daemon] = []

    def start(self) -> None:
        first = self._unshare.start().pid
        inside = self._inside = wait_until(lambda: _children(first), "the node's first process")[0]
        containerd = Daemon(
            "containerd",
            ["containerd", "--config", self.folder / "containerd.toml"],
            self._logs,
            ready=(self.folder / "run/containerd/containerd.sock").exists,
            namespaces=inside,
        )
        self._daemons.append(containerd.start())
        self.import_image(image.build_sleeper(self.folder))
        kubelet = [self._binaries / "kubelet", *self._settings]
        self.kubelet = Daemon(
            "kubelet", kubelet, self._logs, ready=self._advertises_devices, namespaces=inside
        )
        plugin = [sys.executable, HERE / "device_plugin.py", self.kubelet_folder / "device-plugins"]
        self._daemons.append(
            Daemon("device-plugin", [*plugin, RESOURCE, VISIBLE, *self._devices], self._logs).start()
        )
        self._daemons.append(self.kubelet.start())

    def stop(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.stop()
        self._unshare.stop()
        self.cgroups.remove()

    @contextmanager
    def kubelet_stopped(self) -> Iterator[None]:
        """Stop the kubelet within; containers keep running. Afterwards, devices are advertised again."""
        self.kubelet.stop()
        try:
            yield
        finally:
            self._start_kubelet_again()

    def _start_kubelet_again(self) -> None:
        # Clear the old status, which would look like a new one.
        none = {"allocatable": {RESOURCE: "0"}, "capacity": {RESOURCE: "0"}}
        self._api.admin.call("PATCH", f"api/v1/nodes/{self.name}/status", {"status": none})
        self.kubelet.start()

    @contextmanager
    def static_pod(self, manifest: Json) -> Iterator[str]:
        """Run a static pod within. Yields the name of its mirror pod in the API."""
        name = f"{manifest['metadata']['name']}-{self.name}"
        file = self.static_pods / f"{name}.json"
        file.write_text(json.dumps(manifest))
        try:
            yield name
        finally:
            file.unlink()
        path = f"api/v1/namespaces/{manifest['metadata']['namespace']}/pods/{name}"
        wait_until(
            lambda: self._api.admin.request("GET", path).status_code == 404, f"static pod {name} to end"
        )

    def import_image(self, archive: Path) -> None:
        """Import an image into the node's containerd, as if it had been pulled."""
        command = ["ctr", "--namespace=k8s.io", "image", "import", "--snapshotter=native", str(archive)]
        done = self.run_inside(*command)
        assert done.returncode == 0, done.stderr

    def run_inside(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the node's mount and PID namespaces."""
        enter = ["nsenter", f"--target={self._inside}", "--mount", "--pid", "--"]
        return subprocess.run([*enter, *command], capture_output=True, text=True, check=False)

    def namespaced_pid(self, pid: int) -> int:
        """PID of a process in the node's PID namespace."""
        status = Path(f"/proc/{pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("NSpid:"))
        own = len(
            Path(f"/proc/{self._inside}/status").read_text().partition("NSpid:")[2].split("\n")[0].split()
        )
        return int(line.split()[own])

    def _advertises_devices(self) -> bool:
        response = self._api.admin.request("GET", f"api/v1/nodes/{self.name}")
        if not response.is_success:
            return False
        allocatable = response.json()["status"].get("allocatable", {}).get(RESOURCE, "0")
        return bool(allocatable == str(len(self._devices))) and self.pod_resources.exists()

    def _unshare_command(self) -> list[str | Path]:
        namespaces = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        return ["unshare", *namespaces, HERE / "node.sh", self.folder]

    def _write_settings(self, control_plane: ControlPlane) -> list[str | Path]:
        root = self.folder / "containerd"
        (root / "networks").mkdir()
        (root / "networks/10-unused.conf").write_text(json.dumps(_NETWORK))
        (self.folder / "containerd.toml").write_text(_CONTAINERD.format(root=root, image=image.NAME))
        settings = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": "127.0.0.1",
            "port": free_port(),
            "healthzPort": free_port(),
            "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": self.cgroups.path,
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            "resolvConf": "",
            "staticPodPath": str(self.static_pods),
            "fileCheckFrequency": "1s",
            "nodeStatusUpdateFrequency": "1s",
            "featureGates": {"EphemeralContainers": True},
            # The disk of this machine may be full: evict no pods, and delete no images.
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "1Mi", "nodefs.available": "1Mi"},
        }
        file = self.folder / "kubelet.yaml"
        file.write_text(yaml.safe_dump(settings))
        return [
            f"--config={file}",
            f"--kubeconfig={control_plane.kubeconfig(control_plane.admin.token)}",
            f"--hostname-override={self.name}",
            f"--cert-dir={self.folder / 'pki'}",
            "--container-runtime=remote",
            "--container-runtime-endpoint=unix:///run/containerd/containerd.sock",
        ]


def _children(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children()]
