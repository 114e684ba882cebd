"""The words that name keys and periods of reports, apart from their meaning: serving does not need that."""

from __future__ import annotations

from gpuledger.model.workload import KEY_FACTS

LABEL = "label:"
TEAM = "team"
# The name of a Gpu's node, for which the caller must know it.
NODE = "node"
# The keys that every ledger has. `team` needs the setting `teams`, and `node` the name of the node.
GROUPINGS = (
    *("owner", "namespace", "pod", "container", "controller", "user", "job"),
    *KEY_FACTS,
    *("unit", "gpu", "model", "command"),
)
HOURLY, DAILY, WEEKLY, MONTHLY, YEARLY = "hour", "day", "week", "month", "year"
EVERY = (HOURLY, DAILY, WEEKLY, MONTHLY)
