"""Remote-write settings: Prometheus's `remote_write` entries, each with an added `queue` section."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from gpuledger.agent.deliver.protocol import VERSION_1
from gpuledger.host.files import file_signature
from gpuledger.host.yaml_nodes import YamlNode


class SecretProvider(Protocol):
    """Source of a secret that can change, such as a watched Kubernetes Secret."""

    @property
    def name(self) -> str:
        """Name for error messages."""

    def revision(self) -> object:
        """Return a value that changes whenever the text changes."""

    def text(self) -> str:
        """Return the current text. Raises GpuledgerError."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret: inline text, a file, or a provider. Its text is never shown."""

    text: str = field(default="", repr=False)
    file: Path | None = None
    provider: SecretProvider | None = field(default=None, repr=False)

    @property
    def absent(self) -> bool:
        """Whether no secret is configured."""
        return not self.text and self.file is None and self.provider is None

    def revision(self) -> object:
        """Return a value that changes whenever the text may have changed."""
        if self.provider is not None:
            return self.provider.revision()
        return None if self.file is None else file_signature(self.file)


@dataclass(frozen=True, slots=True)
class ClientTls:
    """TLS client settings. Certificates are PEM; versions are 12 and 13 for TLS 1.2 and 1.3."""

    ca: Secret = Secret()
    certificate: Secret = Secret()
    key: Secret = Secret()
    server_name: str = ""
    verify: bool = True
    min_version: int = 12
    max_version: int = 13


@dataclass(frozen=True, slots=True)
class Login:
    """HTTP authentication. `scheme` is that of the Authorization header; `user` is for `Basic`."""

    scheme: str
    credentials: Secret
    user: Secret = Secret()


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """Prometheus's `queue_config`, in samples and seconds.

    `capacity` bounds the samples in memory per shard, `max_samples_per_send` the samples of one request.
    `batch_send_deadline` is the longest wait for a full batch.
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
class DiskQueueLimits:
    """Limits of the disk queue, in bytes and seconds.

    `memory_bytes` bounds the samples in memory while the disk is not writable. Writes are fsynced every
    `sync_interval`; 0 leaves that to the kernel.
    """

    max_bytes: int = 1 << 30
    max_age: float = 86_400.0
    memory_bytes: int = 16 << 20
    sync_interval: float = 1.0


@dataclass(frozen=True, slots=True)
class MetadataConfig:
    """Prometheus's `metadata_config`: how HELP and TYPE are sent with remote write 1.0.

    All are sent every `send_interval` seconds, at most `max_samples_per_send` families in a request.
    """

    send: bool = True
    send_interval: float = 60.0
    max_samples_per_send: int = 2_000


@dataclass(frozen=True, slots=True)
class ReceiverSettings:
    """One entry of `remote_write`. `name` (default: derived from the URL) is also the queue's name.

    `url` contains no credentials: they are in `login`. `remote_timeout` is seconds for one whole request.
    `protocol` is one of `protocol.PROTOCOLS`. `write_relabel` is the unparsed `write_relabel_configs`.
    """

    name: str
    url: str
    remote_timeout: float = 30.0
    headers: tuple[tuple[str, Secret], ...] = ()
    login: Login | None = None
    tls: ClientTls = ClientTls()
    queue_config: QueueConfig = QueueConfig()
    queue: DiskQueueLimits = DiskQueueLimits()
    protocol: str = VERSION_1
    metadata: MetadataConfig = MetadataConfig()
    write_relabel: YamlNode | None = field(default=None, compare=False)

    @property
    def shown_url(self) -> str:
        """The URL without its query, which may hold a token."""
        return self.url.partition("?")[0]


def default_receiver_name(url: str) -> str:
    """Return the default name of a receiver: its host and a hash of the URL, stable across restarts."""
    return f"{urlsplit(url).hostname or 'receiver'}-{sha256(url.encode()).hexdigest()[:8]}"
