"""The part of a GPU that a Slurm job has by shards or MPS."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.workloads.device_index import DeviceRef
from gpuledger.workloads.slurm.gres_conf import gpu_numbering, parse_gres_conf
from gpuledger.workloads.slurm.gres_shares import GresFiles, job_fraction
from gpuledger.workloads.slurm.job_identity import ProcessIdentity

TWO_GPUS = "Name=gpu File=/dev/nvidia[0-1]\n"
MPS_FILES = "".join(f"Name=mps Count={count} File=/dev/nvidia{at}\n" for at, count in enumerate((1300, 1200)))


def part(
    *environments: dict[str, str], gres: str = TWO_GPUS, slurm: str = "", gpus: str = "0", first: bool = True
) -> Fraction | None:
    """The fraction of a job with these environments; each has the numbers of its GPUs."""
    processes = [
        ProcessIdentity(7, {"SLURM_JOB_GPUS": gpus, **variables}, first=first) for variables in environments
    ]
    files = GresFiles(parse_gres_conf(gres), parse_gres_conf(slurm))
    refs = [DeviceRef("number", number) for number in gpus.split(",")]
    return job_fraction(processes, files, "n1", gpu_numbering(files.gres, "n1"), refs)


def shards(number: int | str) -> dict[str, str]:
    return {"SLURM_SHARDS_ON_NODE": str(number)}


def mps(percentage: int) -> dict[str, str]:
    return {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percentage)}


SHARDS_BY_FILE = f"{TWO_GPUS}Name=shard Count=4 File=/dev/nvidia0\nName=shard Count=8 File=/dev/nvidia1\n"


@pytest.mark.parametrize(
    ("gres", "slurm", "gpus", "expected"),
    [
        (f"{TWO_GPUS}Name=shard Count=8\n", "", "0", Fraction(1, 4)),
        (f"{TWO_GPUS}Name=shard Count=8\n", "NodeName=n1 Gres=gpu:2,shard:64", "0", Fraction(1, 4)),
        (SHARDS_BY_FILE, "", "0", Fraction(1, 4)),
        (SHARDS_BY_FILE, "", "1", Fraction(1, 8)),
        (f"{TWO_GPUS}Name=shard Count=8 File=/dev/nvidia[0-1]\n", "", "1", Fraction(1, 4)),
        (TWO_GPUS, "NodeName=n[1-9] Gres=gpu:2,shard:64 CPUs=8", "0", Fraction(1, 32)),
        ("AutoDetect=nvml\n", "NodeName=n1 Gres=gpu:a100:4(S:0-1),shard:16(S:0)", "3", Fraction(1, 4)),
        ("", "NodeName=DEFAULT Gres=gpu:a:1,gpu:b:1,shard:4\nNodeName=n1 CPUs=2", "0", Fraction(1, 2)),
        (
            "NodeName=n2 Name=shard Count=2\nNodeName=n1 Name=shard Count=4\n" + TWO_GPUS,
            "",
            "0",
            Fraction(1, 2),
        ),
        # Slurm distributes a remainder by an order that is not known here.
        (f"{TWO_GPUS}Name=shard Count=9\n", "", "0", None),
        (f"{TWO_GPUS}Name=shard Count=4K\n", "", "0", None),
        ("AutoDetect=nvml\nName=shard Count=8\n", "", "0", None),
        (f"{TWO_GPUS}Name=shard Count=4 File=/dev/nvidia0\n", "", "1", None),
        (TWO_GPUS, "NodeName=n2 Gres=gpu:2,shard:64", "0", None),
        ("", "", "0", None),
    ],
)
def test_one_shard_is_one_part_of_the_shards_of_its_gpu(
    gres: str, slurm: str, gpus: str, expected: Fraction | None
) -> None:
    assert part(shards(1), gres=gres, slurm=slurm, gpus=gpus) == expected


@pytest.mark.parametrize(
    ("number", "gpus", "expected"),
    [
        (3, "0", Fraction(3, 4)),
        (4, "0", Fraction(1)),
        (8, "0,1", Fraction(1)),
        # How many are on which GPU is not known.
        (5, "0,1", None),
        # More than there are.
        (5, "0", None),
    ],
)
def test_several_shards(number: int, gpus: str, expected: Fraction | None) -> None:
    assert part(shards(number), gres=f"{TWO_GPUS}Name=shard Count=8\n", gpus=gpus) == expected


@pytest.mark.parametrize(
    ("gres", "gpus", "percentage", "expected"),
    [
        # 200 of 1300 and of 1200: neighbors are rounded down to the same percentage.
        (MPS_FILES, "0", 15, Fraction(15, 100)),
        (MPS_FILES, "1", 16, Fraction(16, 100)),
        ("Name=mps Count=200\n", "0", 40, Fraction(2, 5)),
        # One of three.
        ("Name=mps Count=6\n", "0", 33, Fraction(1, 3)),
        ("Name=mps Count=6\n", "0", 100, Fraction(1)),
        # What Slurm 22.05 writes for any number of units.
        ("Name=mps Count=200\n", "0", 0, None),
        # The user set it in a job with a whole GPU: Slurm has no MPS here.
        ("", "0", 50, Fraction(1)),
    ],
)
def test_the_percentage_of_mps(gres: str, gpus: str, percentage: int, expected: Fraction | None) -> None:
    assert part(mps(percentage), gres=TWO_GPUS + gres, gpus=gpus) == expected


def test_a_job_without_shares_has_whole_gpus() -> None:
    assert part({}, gres=SHARDS_BY_FILE) == 1
    assert part({"SLURM_GPUS_ON_NODE": "1"}, shards(0)) == 1


def test_the_job_has_as_many_shards_as_its_largest_step() -> None:
    assert part(shards(3), shards(1), gres=SHARDS_BY_FILE) == Fraction(3, 4)


def test_the_processes_that_slurm_started_decide() -> None:
    started = ProcessIdentity(7, {"SLURM_JOB_GPUS": "0"}, first=True)
    changed = ProcessIdentity(7, {"SLURM_JOB_GPUS": "0", **shards(1)})
    files = GresFiles(parse_gres_conf(SHARDS_BY_FILE))
    numbering, gpus = gpu_numbering(files.gres, "n1"), [DeviceRef("number", "0")]
    assert job_fraction([started, changed], files, "n1", numbering, gpus) == 1
    assert job_fraction([changed], files, "n1", numbering, gpus) == Fraction(1, 4)
    # Here the user removed the variable.
    sharing, removed = changed._replace(first=True), started._replace(first=False)
    assert job_fraction([sharing, removed], files, "n1", numbering, gpus) == Fraction(1, 4)


def test_a_process_without_the_variable_has_whole_gpus_among_those_of_a_user() -> None:
    assert part(shards(1), {}, gres=SHARDS_BY_FILE, first=False) == 1


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "1" * 30])
def test_a_number_of_shards_that_is_none_makes_no_share(text: str) -> None:
    assert part(shards(text), gres=SHARDS_BY_FILE) == 1


@given(
    st.text(max_size=60),
    st.text(max_size=60),
    st.lists(
        st.dictionaries(st.sampled_from([*shards(1), *mps(1)]), st.text("0123456789x", max_size=5)),
        max_size=3,
    ),
    st.lists(st.integers(0, 9), max_size=3),
)
def test_a_part_is_within_a_gpu_or_not_known(
    gres: str, slurm: str, environments: list[dict[str, str]], gpus: list[int]
) -> None:
    for name in ("shard", "mps"):
        found = part(
            *environments,
            gres=f"{TWO_GPUS}Name={name} Count=8\n{gres}",
            slurm=f"NodeName=n1 Gres=gpu:2,{name}:8\n{slurm}",
            gpus=",".join(map(str, gpus)) or "0",
        )
        assert found is None or 0 < found <= 1
