"""Remote-write receivers of a resource in Prometheus's words, which the agent takes as well."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from gpuledger.model.durations import as_prometheus
from gpuledger.model.settings import duration
from gpuledger.operator.render.names import Manifest
from gpuledger.operator.render.pods import plain
from gpuledger.operator.render.secrets import Secrets
from gpuledger.operator.spec import Plain

_QUEUE: Final = {
    "capacity": "capacity",
    "minShards": "min_shards",
    "maxShards": "max_shards",
    "maxSamplesPerSend": "max_samples_per_send",
    "batchSendDeadline": "batch_send_deadline",
    "minBackoff": "min_backoff",
    "maxBackoff": "max_backoff",
    "retryOnRateLimit": "retry_on_http_429",
    "sampleAgeLimit": "sample_age_limit",
}
_DURATIONS: Final = ("batchSendDeadline", "minBackoff", "maxBackoff", "sampleAgeLimit")
_CAMEL: Final = {"sourceLabels": "source_labels", "targetLabel": "target_label"}
_seconds: Final = duration()


def receivers_of(receivers: Iterable[Plain], secrets: Secrets, path: str) -> list[Manifest]:
    """Each receiver; `path` is where the list stands."""
    return [_receiver(one, secrets, f"{path}[{at}]") for at, one in enumerate(receivers)]


def rules_of(rules: Iterable[Plain]) -> list[Manifest]:
    """Relabel rules with Prometheus's own keys."""
    return [
        # A rule that has both forms of a key is left as it is, for the agent to refuse.
        {
            _CAMEL.get(key, key) if _CAMEL.get(key, key) not in rule else key: value
            for key, value in rule.items()
        }
        for rule in plain(tuple(rules))
    ]


def _receiver(said: Plain, secrets: Secrets, path: str) -> Manifest:
    secrets.look_at_url(said["url"], f"{path}.url")
    made: Manifest = {"url": said["url"]}
    if said.get("name"):
        made["name"] = said["name"]
    if said.get("remoteTimeout"):
        made["remote_timeout"] = _time(said["remoteTimeout"])
    if said.get("headers"):
        made["headers"] = plain(said["headers"])
    made |= secrets.receiver(said, path)
    if said.get("writeRelabelConfigs"):
        made["write_relabel_configs"] = rules_of(said["writeRelabelConfigs"])
    if said.get("queueConfig"):
        made["queue_config"] = {
            _QUEUE[key]: _time(value) if key in _DURATIONS else value
            for key, value in plain(said["queueConfig"]).items()
        }
    queue = plain(said.get("queue") or {})
    words = {"maxBytes": "max_bytes", "maxAge": "max_age"}
    if queue:
        made["queue"] = {words[key]: value for key, value in queue.items()}
    return made


def _time(written: Any) -> str:
    try:
        return as_prometheus(_seconds(written))
    except ValueError:
        # The agent says what is wrong with it.
        return str(written)
