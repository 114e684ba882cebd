"""All forms of cgroups."""

from __future__ import annotations

from unit.workloads.cgroup_forms.containers import CONTAINERS
from unit.workloads.cgroup_forms.jobs import JOBS, OTHER_BATCH_SYSTEMS
from unit.workloads.cgroup_forms.others import MANY_LINES, UNKNOWNS, USERS_AND_UNITS
from unit.workloads.cgroup_forms.pods import PODS

ROWS = PODS + CONTAINERS + JOBS + OTHER_BATCH_SYSTEMS + USERS_AND_UNITS + UNKNOWNS + MANY_LINES
