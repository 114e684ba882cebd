"""The words that name keys and periods of reports, apart from their meaning: serving does not need that."""

from __future__ import annotations

from gpuledger.model.workload import KEY_FACTS

LABEL = "label:"
TEAM = "team"
# The name of a Gpu's node, for which the caller must know it.
NODE = "node"
# The model that an inference server serves, which only Prometheus knows; `model` is that of the GPU.
SERVED_MODEL = "served_model"
# A label of a gateway in front of inference servers, such as gateway:team: its tokens split a model's row.
GATEWAY = "gateway:"
# The keys that every ledger has. `team` needs the setting `teams`, and `node` the name of the node.
GROUPINGS = (
    *("owner", "namespace", "pod", "container", "controller", "user", "job"),
    *KEY_FACTS,
    *("unit", "gpu", "model", "command"),
)
# The keys by which a digest has names of people and groups.
DIGEST_KEYS = ("owner", "namespace", "pod", "controller", "user", "job", *KEY_FACTS, "unit")
HOURLY, DAILY, WEEKLY, MONTHLY, YEARLY = "hour", "day", "week", "month", "year"
EVERY = (HOURLY, DAILY, WEEKLY, MONTHLY)
