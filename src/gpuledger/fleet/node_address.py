"""The address of a node: where its API is, and under which name and link it is shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import quote, unquote

from gpuledger.http.client_messages import DEFAULT_PORTS
from gpuledger.http.hosts import parse_http_url
from gpuledger.model.errors import UsageError
from gpuledger.model.text import clean_name, join_host_port

# The port of `gpuledger serve`.
NODE_PORT = 9400
_PATH = "/%:@!$&'()*+,;=~"


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """Where a node serves its API, with the login of its URL (`user:password`, empty without one).

    `name` is that of the list, empty if it has none: the node's own name is shown then. `page` is the link
    to its page, empty for `url`.
    """

    scheme: str
    host: str
    port: int
    path: str = ""
    login: str = field(default="", repr=False)
    name: str = ""
    page: str = ""

    @property
    def url(self) -> str:
        """The URL without the login and without a slash at its end. Identifies the address."""
        return f"{self.scheme}://{join_host_port(self.host, self.port)}{self.path}"

    @property
    def place(self) -> str:
        """The host, with the port if it is not that of `gpuledger serve`."""
        return self.host if self.port == NODE_PORT else join_host_port(self.host, self.port)


def parse_node_address(
    written: str, place: str, *, scheme: str = "http", port: int = NODE_PORT, name: str = "", page: str = ""
) -> NodeAddress:
    """Parse an address or URL. `scheme` and `port` are those of an address without a scheme.

    Raises UsageError that begins with `place`, without any password.
    """
    given = written.strip()
    has_scheme = "://" in given
    parts = parse_http_url(given if has_scheme else f"{scheme}://{given}", place, "http://gpu-1:9400")
    login = "" if parts.username is None else f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    if any(not sign.isprintable() for sign in login):
        raise UsageError(f"{place}: the login of {parts.hostname} has a control character")
    if page and not page.startswith(("http://", "https://")):
        # A link with another scheme could run a script.
        raise UsageError(f"{place}: the page of {parts.hostname} must be a URL of http or https")
    return NodeAddress(
        parts.scheme,
        parts.hostname or "",
        parts.port or (DEFAULT_PORTS[parts.scheme] if has_scheme else port),
        quote(parts.path.rstrip("/"), _PATH),
        login,
        clean_name(" ".join(name.split())),
        parse_http_url(page, place, "https://gpu-1:9400").geturl() if page else "",
    )
