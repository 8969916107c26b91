"""TensorBoard's event files, written without TensorBoard: records of protocol buffers with a checksum each.

Source: tensorflow/core/lib/io/record_writer.cc, tensorflow/core/util/event.proto, framework/summary.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

Scalars = tuple[int, Mapping[str, float]]
"""A step, and tag -> value at it."""
_POLYNOMIAL = 0x82F63B78
"""Of CRC-32C (Castagnoli), reflected."""


def event_file(written_at: float, steps: Iterable[Scalars]) -> bytes:
    """Return an event file: its version, then an event a step."""
    records = [_record(_double(1, written_at) + _text(3, "brain.Event:2"))]
    for step, values in steps:
        summary = b"".join(_bytes(1, _text(1, tag) + _float(2, value)) for tag, value in values.items())
        records.append(_record(_double(1, written_at) + _whole(2, step) + _bytes(5, summary)))
    return b"".join(records)


def _record(content: bytes) -> bytes:
    length = struct.pack("<Q", len(content))
    return length + _checksum(length) + content + _checksum(content)


def _checksum(content: bytes) -> bytes:
    crc = crc32c(content)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _crc_of_byte(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
    return value


_TABLE = [_crc_of_byte(value) for value in range(256)]


def crc32c(content: bytes) -> int:
    """Return the CRC-32C of some bytes."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def _bytes(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _text(field: int, text: str) -> bytes:
    return _bytes(field, text.encode())


def _whole(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)


def _float(field: int, value: float) -> bytes:
    return _varint(field << 3 | 5) + struct.pack("<f", value)
