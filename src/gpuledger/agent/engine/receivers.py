"""A receiver of ours in Prometheus 2.42's words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gpuledger.agent.engine.access import Yaml, login_config, tls_config
from gpuledger.model.errors import UsageError
from gpuledger.outputs.keys import TLS_VERSIONS
from gpuledger.outputs.remote_write.settings import ReceiverSettings

# What means the same there, whatever is written after it.
_SAME: Final = (
    *("name", "remote_timeout", "write_relabel_configs", "metadata_config"),
    *("follow_redirects", "enable_http2"),
)
# Of `queue_config`, what came after 2.42; our own queue has bounds of its own besides.
_LATER: Final = frozenset({"sample_age_limit"})
# The one usual header that is no secret: whose the samples are, where a store has several tenants.
_TENANT: Final = "x-scope-orgid"
_VERSIONS: Final = {number: word for word, number in TLS_VERSIONS.items()}


def receiver_config(receiver: ReceiverSettings, written: Mapping[str, Any]) -> Yaml:
    """An entry of remote_write; `written` is ours as YAML has it.

    Raises UsageError for secrets, which are not repeated, and for what Prometheus has no words for.
    """
    queue = {name: value for name, value in (written.get("queue_config") or {}).items() if name not in _LATER}
    return {
        "url": receiver.url,
        **{key: written[key] for key in _SAME if written.get(key) is not None},
        **({"headers": _headers(receiver)} if receiver.headers else {}),
        **login_config(receiver.login),
        **_tls(receiver),
        **({"queue_config": queue} if queue else {}),
    }


def _headers(receiver: ReceiverSettings) -> Yaml:
    for name, value in receiver.headers:
        if name.lower() != _TENANT or value.file is not None:
            raise UsageError(
                f"{receiver.name}: what the header {name} says may be a secret and is not printed; leave it "
                "out here, and add it to what is printed"
            )
    return {name: value.text for name, value in receiver.headers}


def _tls(receiver: ReceiverSettings) -> Yaml:
    found = tls_config(receiver.tls)
    if receiver.tls.min_version > 12:
        found.setdefault("tls_config", {})["min_version"] = _VERSIONS[receiver.tls.min_version]
    if receiver.tls.max_version < 13:
        raise UsageError(f"{receiver.name}: Prometheus 2.42 knows no tls_config.max_version; leave it out")
    return found
