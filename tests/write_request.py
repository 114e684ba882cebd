"""Decodes remote write 1.0 requests with the official protobuf library; the messages are declared here."""

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
    ],
    "TimeSeries": [
        ("labels", 1, _FIELD.TYPE_MESSAGE, True, "Label"),
        ("samples", 2, _FIELD.TYPE_MESSAGE, True, "Sample"),
    ],
    "Label": [("name", 1, _FIELD.TYPE_STRING, False, ""), ("value", 2, _FIELD.TYPE_STRING, False, "")],
    "Sample": [("value", 1, _FIELD.TYPE_DOUBLE, False, ""), ("timestamp", 2, _FIELD.TYPE_INT64, False, "")],
}


def _request_class() -> type[Any]:
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
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("prometheus.WriteRequest"))


WriteRequest = _request_class()


def series_of(payload: bytes) -> list[tuple[list[tuple[str, str]], list[tuple[bytes, int]]]]:
    """Return each series' labels and samples, with values as eight bytes to distinguish NaNs."""
    request = WriteRequest.FromString(payload)
    return [
        (
            [(label.name, label.value) for label in series.labels],
            [(pack("<d", sample.value), sample.timestamp) for sample in series.samples],
        )
        for series in request.timeseries
    ]


def unpacked(body: bytes) -> bytes:
    """Decompress the body of a request."""
    return bytes(cramjam.snappy.decompress_raw(body))
