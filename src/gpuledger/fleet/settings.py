"""Settings of `gpuledger fleet`: the server, the lists of nodes, and the access to nodes."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.http.addresses import Address, parse_address_setting
from gpuledger.http.client_access import ClientAccessSettings, access_option
from gpuledger.model.settings import boolean, choice, duration, integer, option, repeated_texts, setting, text


@dataclass(frozen=True)
class FleetServerSettings:
    """Where the page of the fleet is served, and how often nodes are read."""

    listen_address: Address = option(
        "fleet.listen_address",
        parse_address_setting,
        Address("", 9410),
        "serve the page and the API of the fleet on this address",
        metavar="ADDR",
    )
    web_config: str = setting(
        "fleet.web_config",
        text,
        "",
        "web config file of Prometheus's exporter-toolkit for the page of the fleet: TLS, client "
        "certificates, basic auth",
        flags=("--web.config.file", "--web.config-file"),
        metavar="FILE",
    )
    interval: float = option(
        "fleet.interval",
        duration(lowest=1.0, highest=3600.0),
        5.0,
        "read each node once per interval; a node that fails is read less often, at least once a minute",
    )
    timeout: float = option(
        "fleet.timeout",
        duration(lowest=0.1, highest=300.0),
        5.0,
        "time for the whole answer of a node",
    )


@dataclass(frozen=True)
class NodeListSettings:
    """The lists of nodes; a node that is in several of them counts once."""

    nodes: tuple[str, ...] = option(
        "fleet.node",
        repeated_texts,
        (),
        "a node, as its address (gpu-1, gpu-1:9400) or URL (https://gpu-1:9400)",
        metavar="URL",
        repeatable=True,
        as_written=True,
    )
    file: str = option(
        "fleet.nodes_file",
        text,
        "",
        "file of nodes, read again when it changes: one address or URL a line, or Prometheus's format of "
        "file_sd (.json, .yml, .yaml)",
        metavar="FILE",
    )
    http_sd: str = option(
        "fleet.http_sd",
        text,
        "",
        "URL with a list of nodes in Prometheus's format of http_sd",
        metavar="URL",
    )
    dns_srv: str = option(
        "fleet.dns_srv",
        text,
        "",
        "name of DNS SRV records with the nodes, such as _gpuledger._tcp.lab.example.com",
        metavar="NAME",
    )
    slurm: bool = option(
        "fleet.slurm", boolean, False, "all nodes of this Slurm cluster that have GPUs (runs sinfo)"
    )
    pods: str = option(
        "fleet.kubernetes_pods",
        text,
        "",
        "the running pods with these labels, in all namespaces or one, such as "
        "monitoring/app.kubernetes.io/name=gpuledger",
        metavar="[NAMESPACE/]LABELS",
    )
    port: int = option(
        "fleet.port",
        integer(1, 65535),
        9400,
        "port of nodes that are listed without one: those of Slurm and Kubernetes, and bare names",
    )
    scheme: str = option(
        "fleet.scheme",
        choice("http", "https"),
        "http",
        "scheme of nodes that are listed without one",
        metavar="http|https",
    )
    refresh: float = option(
        "fleet.refresh",
        duration(lowest=1.0, highest=86_400.0),
        30.0,
        "read the lists of nodes, and changed files of passwords and certificates, once per interval",
    )


@dataclass(frozen=True)
class FleetCredentialSettings(ClientAccessSettings):
    """Login and TLS files for the nodes. A user in the URL of a node wins."""

    user: str = access_option("fleet.user", of_nodes=True)
    password_file: str = access_option("fleet.password_file", of_nodes=True)
    ca_file: str = access_option("fleet.ca_file", of_nodes=True)
    cert_file: str = access_option("fleet.cert_file", of_nodes=True)
    key_file: str = access_option("fleet.key_file", of_nodes=True)
