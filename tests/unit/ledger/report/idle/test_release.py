"""The command that would release a GPU: right for each kind of owner, and safe for a shell."""

from __future__ import annotations

import shlex

import pytest

from gpuledger.ledger.report.idle.release import find_release
from gpuledger.model.workload import UNKNOWN, Workload


def pod(kind: str = "", name: str = "") -> Workload:
    return Workload("pod", "ml", "train-0", controller_kind=kind, controller=name)


@pytest.mark.parametrize(
    ("owner", "command", "note"),
    [
        (pod(), "kubectl -n ml delete pod train-0", ""),
        (pod("Job", "train"), "kubectl -n ml delete job train", ""),
        (
            pod("Deployment", "web"),
            "kubectl -n ml scale deployment/web --replicas=0",
            "ends all pods of the Deployment, which would replace a deleted one",
        ),
        (
            pod("RayCluster", "ray"),
            "kubectl -n ml delete pod train-0",
            "its RayCluster ray may create it again",
        ),
        (Workload("pod", pod_uid="u"), "", "the name of the pod is not known"),
        (Workload("slurm", job="4711"), "scancel 4711", ""),
        (Workload("slurm", job="4713", array_job="4711", array_task="2"), "scancel 4711_2", ""),
        (Workload("job", job="12.pbs", runtime="pbs"), "qdel 12.pbs", ""),
        (Workload("job", job="12", runtime="lsf"), "bkill 12", ""),
        (Workload("job", job="12"), "", "end job 12 in its batch system"),
        (Workload("container", container="web", runtime="docker"), "docker stop web", ""),
        (
            Workload("container", container="web", runtime="podman", user="ann"),
            "podman stop web",
            "as user ann",
        ),
        (
            Workload("container", container_id="0123456789abcdef", runtime="docker"),
            "docker stop 0123456789ab",
            "",
        ),
        (Workload("container", container="web", runtime="new"), "kill 7 12", ""),
        (Workload("unit", unit="train.service", user="root"), "systemctl stop train.service", ""),
        (
            Workload("unit", unit="app.service", user="ann"),
            "kill 7 12",
            "they belong to app.service of ann",
        ),
        (Workload("user", user="ann"), "kill 7 12", ""),
        (UNKNOWN, "kill 7 12", ""),
    ],
)
def test_the_command_of_each_owner(owner: Workload, command: str, note: str) -> None:
    assert find_release(owner, (12, 7)) == (command, note)


def test_an_owner_without_a_process_and_without_a_manager_has_no_command() -> None:
    assert find_release(Workload("user", user="ann")) == ("", "no process of this owner is known")


@pytest.mark.parametrize(
    "owner",
    [
        Workload("pod", "ml; reboot", "$(reboot)"),
        Workload("pod", "a b", "p", controller_kind="Job", controller="`reboot`"),
        Workload("slurm", job="1; reboot"),
        Workload("job", job="1|reboot", runtime="pbs"),
        Workload("container", container="a;reboot", runtime="docker"),
        Workload("unit", unit="a b;reboot.service"),
    ],
)
def test_names_never_end_a_word_of_the_command(owner: Workload) -> None:
    command = find_release(owner, (1,)).command
    # A shell reads each name as one word, without any operator.
    words = list(shlex.shlex(command, posix=True, punctuation_chars=True))
    assert shlex.split(command)
    assert not {";", "|", "&", "(", ")", "<", ">", "`"} & set(words)
