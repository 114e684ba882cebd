"""Write requests of queued samples, in either version of remote write.

The queue holds requests of 1.0; for 2.0 they are translated when they are sent.

    Request: symbols (4), timeseries (5)
    TimeSeries: labels_refs (1), samples (2), metadata (5)   Metadata: type (1), help_ref (3), unit_ref (4)

The field numbers are those of io.prometheus.write.v2. Samples are encoded as in 1.0. A receiver that knows
only 1.0 reads an empty request, because 2.0 does not use the fields 1 to 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

import cramjam

from gpuledger.agent.deliver.metadata import MetadataStore, TargetMetadata
from gpuledger.agent.deliver.protocol import VERSION_1
from gpuledger.agent.deliver.records import (
    Record,
    after_field,
    content_offset,
    decompress_record,
    join_records,
)
from gpuledger.agent.deliver.refused_series import SeriesSample
from gpuledger.exposition.remote_write import encode_bytes_field, encode_varint

# Tag of a label in a 1.0 series; its samples follow.
_LABEL_TAG: Final = 0x0A
# Encoded label of a series' name, behind the tag and the length of the label.
_NAME: Final = b"\x0a\x08__name__"


class Request2:
    """One remote write 2.0 request. Add the series of 1.0 requests, then take its `body`."""

    def __init__(self) -> None:
        # The first symbol must be empty.
        self._numbers: dict[bytes, int] = {b"": 0}
        # References and metadata of each encoded label, by the metadata of the target.
        self._labels: dict[int, dict[bytes, tuple[bytes, bytes]]] = {}
        self._series: list[bytes] = []

    def add(self, payload: bytes, metadata: TargetMetadata | None) -> None:
        """Add the series of a WriteRequest; `metadata` is that of their target."""
        known = self._labels.setdefault(id(metadata), {})
        start = 0
        while start < len(payload):
            end = after_field(payload, start)
            references, about = [], b""
            at = content_offset(payload, start)
            # Calls for each label would take most of the time.
            while at < end and payload[at] == _LABEL_TAG:
                size = payload[at + 1]
                after = at + 2 + size if size < 128 else after_field(payload, at)
                label = payload[at:after]
                if label not in known:
                    known[label] = self._encode_label(label, metadata)
                found, of_name = known[label]
                references.append(found)
                if of_name:
                    about = of_name
                at = after
            content = b"%b%b%b" % (encode_bytes_field(1, b"".join(references)), payload[at:end], about)
            self._series.append(encode_bytes_field(5, content))
            start = end

    def body(self) -> bytes:
        """Return the compressed request."""
        symbols = [encode_bytes_field(4, symbol) for symbol in self._numbers]
        return bytes(cramjam.snappy.compress_raw(b"".join(symbols + self._series)))

    def _encode_label(self, label: bytes, metadata: TargetMetadata | None) -> tuple[bytes, bytes]:
        """Return the references to name and value, and the metadata field if the label is a known name."""
        pair = label[content_offset(label, 0) :]
        middle = after_field(pair, 0)
        value = pair[content_offset(pair, middle) :]
        references = self._reference(pair[content_offset(pair, 0) : middle]) + self._reference(value)
        found = metadata.of_series(value.decode()) if metadata and pair.startswith(_NAME) else None
        if found is None:
            return references, b""
        fields = [b"\x08%c" % found.kind] if found.kind else []
        for tag, text in ((b"\x18", found.help), (b"\x20", found.unit)):
            if text:
                fields.append(tag + self._reference(text.encode()))
        return references, encode_bytes_field(5, b"".join(fields))

    def _reference(self, symbol: bytes) -> bytes:
        return encode_varint(self._numbers.setdefault(symbol, len(self._numbers)))


class WriteRequest(Protocol):
    """Samples that are sent in one request."""

    @property
    def samples(self) -> int:
        """Number of samples."""

    def encode(self, version: str) -> bytes:
        """Return the compressed request in this version."""


class RecordsRequest:
    """The samples of whole records, which are not compressed again for 1.0."""

    def __init__(self, records: Sequence[Record], metadata: MetadataStore) -> None:
        self._records = records
        self._metadata = metadata
        self.samples = sum(record.samples for record in records)

    def encode(self, version: str) -> bytes:
        """Return the compressed request in this version."""
        if version == VERSION_1:
            return join_records(self._records)
        parts = ((record.shard, decompress_record(record)) for record in self._records)
        return _encode_version_2(parts, self._metadata)


class SeriesRequest:
    """The samples of some series of records."""

    def __init__(self, series: Sequence[SeriesSample], metadata: MetadataStore) -> None:
        self._series = series
        self._metadata = metadata
        self.samples = sum(one.samples for one in series)

    def encode(self, version: str) -> bytes:
        """Return the compressed request in this version."""
        if version == VERSION_1:
            return bytes(cramjam.snappy.compress_raw(b"".join(one.field for one in self._series)))
        parts = ((one.item.record.shard, one.field) for one in self._series)
        return _encode_version_2(parts, self._metadata)


def _encode_version_2(parts: Iterable[tuple[int, bytes]], metadata: MetadataStore) -> bytes:
    request = Request2()
    for shard, payload in parts:
        request.add(payload, metadata.of(shard))
    return request.body()
