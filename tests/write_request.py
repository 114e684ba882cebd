"""Decodes remote write requests, 1.0 and 2.0, with the official protobuf library; the messages are here."""

from __future__ import annotations

from struct import pack
from typing import Any

import cramjam
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELD = descriptor_pb2.FieldDescriptorProto
# message: (field, number, type, repeated, message type)
_MESSAGES: dict[str, list[tuple[str, int, int, bool, str]]] = {
    "WriteRequest": [
        ("timeseries", 1, _FIELD.TYPE_MESSAGE, True, "TimeSeries"),
        ("metadata", 3, _FIELD.TYPE_MESSAGE, True, "MetricMetadata"),
    ],
    "MetricMetadata": [
        ("type", 1, _FIELD.TYPE_INT32, False, ""),
        ("metric_family_name", 2, _FIELD.TYPE_STRING, False, ""),
        ("help", 4, _FIELD.TYPE_STRING, False, ""),
        ("unit", 5, _FIELD.TYPE_STRING, False, ""),
    ],
    "TimeSeries": [
        ("labels", 1, _FIELD.TYPE_MESSAGE, True, "Label"),
        ("samples", 2, _FIELD.TYPE_MESSAGE, True, "Sample"),
    ],
    "Label": [("name", 1, _FIELD.TYPE_STRING, False, ""), ("value", 2, _FIELD.TYPE_STRING, False, "")],
    "Sample": [("value", 1, _FIELD.TYPE_DOUBLE, False, ""), ("timestamp", 2, _FIELD.TYPE_INT64, False, "")],
    # io.prometheus.write.v2
    "Request2": [
        ("symbols", 4, _FIELD.TYPE_STRING, True, ""),
        ("timeseries", 5, _FIELD.TYPE_MESSAGE, True, "TimeSeries2"),
    ],
    "TimeSeries2": [
        ("labels_refs", 1, _FIELD.TYPE_UINT32, True, ""),
        ("samples", 2, _FIELD.TYPE_MESSAGE, True, "Sample"),
        ("metadata", 5, _FIELD.TYPE_MESSAGE, False, "Metadata2"),
    ],
    "Metadata2": [
        ("type", 1, _FIELD.TYPE_INT32, False, ""),
        ("help_ref", 3, _FIELD.TYPE_UINT32, False, ""),
        ("unit_ref", 4, _FIELD.TYPE_UINT32, False, ""),
    ],
}


def _message_classes() -> dict[str, type[Any]]:
    file = descriptor_pb2.FileDescriptorProto(name="write.proto", package="prometheus", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, repeated, of in fields:
            message.field.add(
                name=field,
                number=number,
                type=kind,  # type: ignore[arg-type]  # the stubs accept only the enum type
                label=_FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL,
                type_name=f".prometheus.{of}" if of else None,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"prometheus.{name}"))
        for name in _MESSAGES
    }


_CLASSES = _message_classes()
WriteRequest = _CLASSES["WriteRequest"]
# Labels, and samples with values as eight bytes to distinguish NaNs.
Series = tuple[list[tuple[str, str]], list[tuple[bytes, int]]]
# Type, help and unit.
Metadata = tuple[int, str, str]


def series_of(payload: bytes) -> list[Series]:
    """Return each series' labels and samples."""
    request = WriteRequest.FromString(payload)
    return [
        (
            [(label.name, label.value) for label in series.labels],
            [(pack("<d", sample.value), sample.timestamp) for sample in series.samples],
        )
        for series in request.timeseries
    ]


def series_of_version_2(payload: bytes) -> list[tuple[Series, Metadata]]:
    """Return each series of a 2.0 request with its metadata."""
    request = _CLASSES["Request2"].FromString(payload)
    symbols = request.symbols
    assert symbols[0] == ""
    assert len(set(symbols)) == len(symbols)
    found = []
    for series in request.timeseries:
        texts = [symbols[number] for number in series.labels_refs]
        samples = [(pack("<d", sample.value), sample.timestamp) for sample in series.samples]
        about = series.metadata
        metadata = about.type, symbols[about.help_ref], symbols[about.unit_ref]
        found.append(((list(zip(texts[::2], texts[1::2], strict=True)), samples), metadata))
    return found


def metadata_of(payload: bytes) -> dict[str, Metadata]:
    """Return the metadata of each family in a 1.0 request."""
    request = WriteRequest.FromString(payload)
    return {one.metric_family_name: (one.type, one.help, one.unit) for one in request.metadata}


def unpacked(body: bytes) -> bytes:
    """Decompress the body of a request."""
    return bytes(cramjam.snappy.decompress_raw(body))
