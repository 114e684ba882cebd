"""What a user sets about remote write: Prometheus's `remote_write` entries, and a `queue` in each."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from gpuledger.host.yaml_nodes import Node


class Held(Protocol):
    """A secret that somebody else keeps up to date."""

    @property
    def name(self) -> str:
        """What it is called in errors."""

    def mark(self) -> object:
        """Something that is not equal to what it was whenever the text is another."""

    def text(self) -> str:
        """The text as it is now. Raises GpuledgerError."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A text given in the configuration, the file that holds it, or somebody who does; never shown."""

    text: str = field(default="", repr=False)
    file: Path | None = None
    held: Held | None = field(default=None, repr=False)

    @property
    def absent(self) -> bool:
        """Nothing was given."""
        return not self.text and self.file is None and self.held is None


@dataclass(frozen=True, slots=True)
class ClientTls:
    """Whom we believe and what we show: PEM as Secrets, versions as 12 and 13."""

    ca: Secret = Secret()
    certificate: Secret = Secret()
    key: Secret = Secret()
    server_name: str = ""
    verify: bool = True
    min_version: int = 12
    max_version: int = 13


@dataclass(frozen=True, slots=True)
class Login:
    """How we say who we are. `scheme` is the word before the credentials; with `Basic` there is a user."""

    scheme: str
    credentials: Secret
    user: Secret = Secret()


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """Prometheus's `queue_config`, in samples and seconds.

    `capacity` bounds the samples that a shard holds in memory, `max_samples_per_send` those of one request.
    `batch_send_deadline` is how long a sample waits for others at most.
    """

    capacity: int = 10_000
    min_shards: int = 1
    max_shards: int = 50
    max_samples_per_send: int = 2_000
    batch_send_deadline: float = 5.0
    min_backoff: float = 0.03
    max_backoff: float = 5.0
    retry_on_http_429: bool = True


@dataclass(frozen=True, slots=True)
class DiskQueue:
    """Bounds of what waits on disk, in bytes and seconds.

    `memory_bytes` may wait in memory while the disk takes nothing. Every `sync_interval` what was written
    is brought to the disk itself; 0 leaves that to the kernel.
    """

    max_bytes: int = 1 << 30
    max_age: float = 86_400.0
    memory_bytes: int = 16 << 20
    sync_interval: float = 1.0


@dataclass(frozen=True, slots=True)
class ReceiverSettings:
    """One entry of `remote_write`. `name` is that given, else made from the URL; it names the queue, too.

    `url` has no credentials in it, they are in `login`. `remote_timeout` is seconds for one whole request.
    `write_relabel` is for whoever knows labels: the `write_relabel_configs` as they stand in the file.
    """

    name: str
    url: str
    remote_timeout: float = 30.0
    headers: tuple[tuple[str, Secret], ...] = ()
    login: Login | None = None
    tls: ClientTls = ClientTls()
    queue_config: QueueConfig = QueueConfig()
    queue: DiskQueue = DiskQueue()
    write_relabel: Node | None = field(default=None, compare=False)

    @property
    def shown_url(self) -> str:
        """The URL without its query, which may hold a token."""
        return self.url.partition("?")[0]


def name_from(url: str) -> str:
    """A name for a receiver without one: its host and something of its whole URL, stable over restarts."""
    return f"{urlsplit(url).hostname or 'receiver'}-{sha256(url.encode()).hexdigest()[:8]}"
