"""Remote hosts, the system clock, and the settings."""

from __future__ import annotations

import pytest

from gpuledger.host.clock import SystemClock
from gpuledger.host.procfs import RemoteHost
from gpuledger.host.settings import HostSettings
from gpuledger.model.settings import declared_settings


def test_a_remote_pid_has_only_first_sight_facts() -> None:
    facts = RemoteHost().identify([1], 100.0)[1]
    assert facts.missing == "remote"
    assert (facts.start.boot_id, facts.start.ticks, facts.start.unix, facts.start.seen) == (
        "",
        None,
        100.0,
        100.0,
    )
    assert (facts.comm, facts.uid, facts.cgroup) == ("", None, "")


def test_first_sight_is_kept_while_the_pid_is_requested() -> None:
    host = RemoteHost()
    first = host.identify([1], 100.0)[1]
    assert host.identify([1, 2], 101.0)[1] is first


def test_a_pid_that_returns_is_a_new_process() -> None:
    host = RemoteHost()
    first = host.identify([1], 100.0)[1]
    host.identify([2], 101.0)
    assert host.identify([1], 102.0)[1].start != first.start


def test_elapsed_time_never_goes_back() -> None:
    clock = SystemClock()
    assert 0 < clock.elapsed() <= clock.elapsed()


def test_host_settings_have_the_documented_flags() -> None:
    flags = {flag for _, item, _ in declared_settings(HostSettings) for flag in item.flags}
    assert flags == {"--procfs", "--sysfs", "--host-pids", "--passwd-file", "--name-service"}


def test_host_pids_accepts_only_auto_or_trust() -> None:
    parse = {item.key: item.parse for _, item, _ in declared_settings(HostSettings)}["host.pids"]
    assert parse("trust") == "trust"
    with pytest.raises(ValueError, match="auto, trust"):
        parse("yes")
