"""A list of nodes that an HTTP server gives, in Prometheus's format of http_sd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from gpuledger.fleet.lists.node_list import LONGEST_LIST, AddressDefaults, UnreadableList, parse_target_groups
from gpuledger.fleet.node_address import NodeAddress, parse_node_address
from gpuledger.fleet.node_client import NodeClient, NodeRequestFailed
from gpuledger.http.client_messages import HttpRequestFailed

_TIMEOUT = 15.0


class HttpNodes:
    """A URL with a list; a login in it is sent to that server only, which does not get that of the nodes.

    Raises UsageError for a malformed URL.
    """

    def __init__(
        self, url: str, defaults: AddressDefaults, client_of: Callable[[NodeAddress], NodeClient]
    ) -> None:
        written = url if "://" in url else f"http://{url}"
        address = parse_node_address(written, "--http-sd")
        query = urlsplit(written).query
        # The path is that of the request.
        self._path = (address.path or "/") + (f"?{query}" if query else "")
        server = NodeAddress(address.scheme, address.host, address.port, "", address.login)
        self._client = client_of(server)
        self._client.is_node = False
        self._defaults = defaults
        self.name = f"{server.url}{address.path}"

    async def read_nodes(self) -> Sequence[NodeAddress]:
        """See NodeList."""
        try:
            response = await self._client.request(self._path, timeout=_TIMEOUT)
            text = response.decoded_body(LONGEST_LIST).decode("utf-8")
        except (NodeRequestFailed, HttpRequestFailed) as error:
            reason = (
                "its URL needs a valid login (https://USER:PASSWORD@...)" if error.kind == "login" else error
            )
            raise UnreadableList(f"the list of nodes {self.name} cannot be read: {reason}") from None
        except UnicodeDecodeError:
            raise UnreadableList(f"the list of nodes {self.name} is not UTF-8") from None
        return parse_target_groups(text, self.name, self._defaults)
