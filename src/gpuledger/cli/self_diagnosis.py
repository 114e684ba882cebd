"""What a program that serves can find out about itself while it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpuledger.cli.diagnosis import run_checks
from gpuledger.config.maps import map_settings
from gpuledger.host.checks import host_checks
from gpuledger.host.clock import SystemClock
from gpuledger.host.settings import HostSettings
from gpuledger.ledger.settings import StoreSettings
from gpuledger.ledger.store.checks import books_checks
from gpuledger.model.checks import Check, Finding
from gpuledger.model.devices import Device
from gpuledger.model.settings import build
from gpuledger.outputs.checks import web_config_checks
from gpuledger.outputs.settings import HttpSettings
from gpuledger.workloads.containers.checks import container_checks
from gpuledger.workloads.job_map.checks import job_map_checks
from gpuledger.workloads.open import MapSettings
from gpuledger.workloads.pod_resources.checks import pod_resources_checks
from gpuledger.workloads.pods.checks import device_uuids, kubernetes_checks
from gpuledger.workloads.pods.settings import is_enabled
from gpuledger.workloads.slurm.checks import slurm_checks

# Without these there is nobody to be named.
NEEDED = ("driver.library", "driver.kernel", "driver.nodes", "driver.answers")


def diagnose_serving(
    values: Mapping[str, Any], environment: Mapping[str, str], *, simulated: bool
) -> list[Finding]:
    """What can be found out from within a program that serves, with its settings.

    Left out is what would open the driver or the source once more (its collectors tell how that goes), and
    the addresses, which it holds itself.
    """
    host = build(HostSettings, values)
    maps = () if simulated else map_checks(map_settings(values), host, environment)
    web = web_config_checks(build(HttpSettings, values))
    books = books_checks(build(StoreSettings, values), environment, made_up=simulated)
    return run_checks((*host_checks(host, environment, local=not simulated), *maps, *books, *web))


def map_checks(
    settings: MapSettings,
    host: HostSettings,
    environment: Mapping[str, str],
    devices: Callable[[], tuple[Device, ...] | None] = lambda: None,
) -> tuple[Check, ...]:
    """Whether each map of owners can be read here. `devices` are those of the source, None where unread."""
    node = settings.node_name(environment)
    return (
        *kubernetes_checks(settings.kubernetes, node, environment),
        *pod_resources_checks(
            settings.pod_resources,
            devices,
            lambda: device_uuids(settings.kubernetes, node, environment),
            enabled=is_enabled(settings.kubernetes, environment),
            needs=NEEDED,
        ),
        *slurm_checks(settings.slurm, sysfs=host.sysfs, procfs=host.procfs),
        *job_map_checks(settings.job_map, SystemClock()),
        *container_checks(settings.containers),
    )
