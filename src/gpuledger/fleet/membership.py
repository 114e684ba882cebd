"""Reads all lists of nodes, and keeps what a list said last while it cannot be read."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpuledger.fleet.lists.node_list import InvalidEntries, NodeList
from gpuledger.fleet.node_address import NodeAddress
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock

_LOG = logging.getLogger("gpuledger.fleet")
# Seconds for one list. A name server or a controller that hangs must not delay the other lists.
_LONGEST_READ: Final = 20.0


@dataclass(slots=True)
class ListState:
    """What is known of a list: its nodes when it could be read last, and why it cannot be read since.

    With an error but without `since`, only some of its entries are wrong, and `nodes` are the others.
    """

    name: str
    nodes: Sequence[NodeAddress] = ()
    error: str = ""
    since: float | None = None
    is_tried: bool = False


class Membership:
    """The nodes of several lists together; an address that is in several of them counts once."""

    def __init__(self, lists: Sequence[NodeList], clock: Clock) -> None:
        self._lists = lists
        self._clock = clock
        self.states = [ListState(one.name) for one in lists]

    async def refresh(self) -> dict[str, NodeAddress]:
        """Read all lists; returns the addresses by URL, in the order of the lists."""
        await asyncio.gather(*map(self._read, self._lists, self.states))
        found: dict[str, NodeAddress] = {}
        for state in self.states:
            for address in state.nodes:
                known = found.get(address.url, address)
                # What the first list does not say can be said by another.
                found[address.url] = replace(
                    known,
                    login=known.login or address.login,
                    name=known.name or address.name,
                    page=known.page or address.page,
                )
        return found

    async def _read(self, read: NodeList, state: ListState) -> None:
        try:
            async with asyncio.timeout(_LONGEST_READ):
                nodes = await read.read_nodes()
        except TimeoutError:
            self._fail(state, f"{read.name} cannot be read within {_LONGEST_READ:g} s")
        except InvalidEntries as error:
            self._leave_out(state, error)
        except GpuledgerError as error:
            self._fail(state, str(error))
        except Exception as error:  # noqa: BLE001  (see the log)
            _LOG.exception("%s cannot be read", read.name)
            self._fail(state, f"{read.name}: {type(error).__name__}; the log has the reason")
        else:
            if state.error:
                _LOG.info("%s can be read again: %d nodes", read.name, len(nodes))
            state.nodes, state.error, state.since = nodes, "", None
        state.is_tried = True

    def _leave_out(self, state: ListState, error: InvalidEntries) -> None:
        if not error.nodes:
            self._fail(state, str(error))
            return
        if str(error) != state.error:
            _LOG.error("%s; the other nodes of the list (%d) are read", error, len(error.nodes))
        state.nodes, state.error, state.since = error.nodes, str(error), None

    def _fail(self, state: ListState, error: str) -> None:
        if error != state.error:
            kept = f"; its last {len(state.nodes)} nodes are kept" if state.nodes else ""
            _LOG.error("%s%s", error, kept)
        if state.since is None:
            state.since = self._clock.unix()
        state.error = error
