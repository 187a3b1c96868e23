"""Builds record batches: Arrow columns from the records that ``store.rows.rowkernel`` decodes.

Only selected columns are gathered. Rows that a kernel lists as odd are decoded by the plain decoder
when the batch is finished.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from reput.store.log import java, properties
from reput.store.log.compression import compression, inflate
from reput.store.log.record import decode_host, host_text
from reput.store.log.status import Status
from reput.store.log.sysflag import SysFlag
from reput.store.rows import rowkernel
from reput.store.rows.rowschema import INTERNAL, TIMESTAMPS_MS

BYTES_PER_BATCH = 16 << 20
"""A batch is full at this many bytes of texts and bodies; one window of the log may exceed it."""

_NUMBERS = {
    "queueId": rowkernel.QUEUE_ID,
    "queueOffset": rowkernel.QUEUE_OFFSET,
    "physicalOffset": rowkernel.PHYSICAL_OFFSET,
    "storeSize": rowkernel.STORE_SIZE,
    "tagsCode": rowkernel.TAGS_CODE,
    "sysFlag": rowkernel.SYS_FLAG,
    "flag": rowkernel.FLAG,
    "reconsumeTimes": rowkernel.RECONSUME_TIMES,
    "preparedTransactionOffset": rowkernel.PREPARED_TRANSACTION_OFFSET,
}
_ALSO_OF_DAMAGED = ("physicalOffset", "storeSize")
_TIMESTAMPS = {
    "bornTimestamp": rowkernel.BORN_TIMESTAMP,
    "storeTimestamp": rowkernel.STORE_TIMESTAMP,
}
_TEXTS = {"topic": rowkernel.TOPIC, "tags": rowkernel.TAGS, "keys": rowkernel.KEYS}
_HOSTS = {"bornHost": rowkernel.BORN_HOST, "storeHost": rowkernel.STORE_HOST}

# words indexed by number: transaction bits, sysFlag's compression bits, Status
_TRANSACTION_SHIFT = 2
_TRANSACTION_TYPES = pa.array(["none", "prepared", "commit", "rollback"])
_COMPRESSION_SHIFT = 8
_COMPRESSIONS = pa.array(
    compression(kind << _COMPRESSION_SHIFT | SysFlag.COMPRESSED)
    for kind in range((SysFlag.COMPRESSION_MASK >> _COMPRESSION_SHIFT) + 1)
)
_STATUS_NAMES = {int(status): status.name.lower() for status in Status}
_REASONS = pa.array(_STATUS_NAMES.get(code) for code in range(max(_STATUS_NAMES) + 1))
_NOTHING = np.empty(0, np.uint8)


class _Strings:
    """Concatenated byte strings in growing arrays; string i is ``offsets[i]:offsets[i + 1]``."""

    def __init__(self) -> None:
        self.data: NDArray[np.uint8] = np.empty(0, np.uint8)
        self.offsets: NDArray[np.int32] = np.zeros(1, np.int32)

    def make_room(self, count: int, strings: int, size: int) -> None:
        """Make room for ``strings`` more after the first ``count``, of ``size`` bytes in all."""
        self.offsets = _with_room(self.offsets, count + 1, strings)
        self.data = _with_room(self.data, int(self.offsets[count]), size)

    def buffers(self, count: int) -> list[pa.Buffer]:
        """Hand over the first ``count`` strings to Arrow and start over."""
        offsets, data = self.offsets[: count + 1], self.data[: self.offsets[count]]
        # the next batch usually needs about as much room as this one
        self.data, self.offsets = np.empty_like(self.data), np.empty_like(self.offsets)
        self.offsets[0] = 0
        return [pa.py_buffer(offsets), pa.py_buffer(data)]


def _with_room(array: NDArray[Any], used: int, more: int) -> NDArray[Any]:
    """``array``, or a larger one that begins with its first ``used`` values."""
    if used + more <= len(array):
        return array
    larger = np.empty(max(used + more, 2 * len(array)), array.dtype)
    larger[:used] = array[:used]
    return larger


class _BytesColumn:
    """A slice of every record, as stored."""

    def __init__(self, kind: pa.DataType, column: int, capacity: int) -> None:
        self._kind = kind
        self._column = column
        self._strings = _Strings()
        self._present = np.empty(capacity, np.uint8)

    def take(self, buf: NDArray[np.uint8], slices: NDArray[np.int64], row: int) -> None:
        """Gather rows from ``row`` on, one for each row of ``slices``."""
        self._strings.make_room(row, len(slices), _size(slices, self._column))
        rowkernel.gather_bytes(
            buf, slices, self._column, len(slices), row, self._strings.data,
            self._strings.offsets, self._present,
        )  # fmt: skip

    def size(self, row: int) -> int:
        """Bytes gathered for the rows before ``row``."""
        return int(self._strings.offsets[row])

    def finish(self, count: int) -> pa.Array:
        """Return the first ``count`` rows and start over."""
        buffers = [_validity(self._present[:count]), *self._strings.buffers(count)]
        return pa.Array.from_buffers(self._kind, count, buffers)


class _TextColumn(_BytesColumn):
    """A slice of every record, as text."""

    def __init__(
        self,
        kind: pa.DataType,
        column: int,
        capacity: int,
        gather: Callable[..., int],
        longest: int,
        say: Callable[[bytes], str],
    ) -> None:
        """``longest`` is the number of bytes by which a text may exceed its slice; ``say`` decodes
        an odd one."""
        super().__init__(kind, column, capacity)
        self._gather = gather
        self._longest = longest
        self._say = say
        self._odd = np.empty(capacity, np.int64)
        self._odd_count = 0

    def take(self, buf: NDArray[np.uint8], slices: NDArray[np.int64], row: int) -> None:
        """Gather rows from ``row`` on, one for each row of ``slices``."""
        count, strings = len(slices), self._strings
        strings.make_room(row, count, _size(slices, self._column) + self._longest * count)
        self._odd_count = self._gather(
            buf, slices, self._column, count, row, strings.data, strings.offsets, self._present,
            self._odd, self._odd_count,
        )  # fmt: skip

    def finish(self, count: int) -> pa.Array:
        """Return the first ``count`` rows and start over."""
        array = super().finish(count)
        odd = self._odd[: self._odd_count].tolist()
        self._odd_count = 0
        said = [self._say(array[row].as_buffer().to_pybytes()) for row in odd]
        return _replaced(array, odd, said)


class _PropertiesColumn:
    """The properties of every record, as a map."""

    def __init__(self, kind: pa.MapType, capacity: int) -> None:
        self._kind = kind
        self._names, self._values = _Strings(), _Strings()
        self._pairs = np.zeros(capacity + 1, np.int32)
        self._present = np.empty(capacity, np.uint8)
        self._odd = np.empty(capacity, np.int64)
        self._odd_blocks: list[bytes] = []

    def take(self, buf: NDArray[np.uint8], slices: NDArray[np.int64], row: int) -> None:
        """Gather rows from ``row`` on, one for each row of ``slices``."""
        count, size = len(slices), _size(slices, rowkernel.PROPERTIES)
        most = size // rowkernel.MIN_PROPERTY_LENGTH + count
        self._names.make_room(int(self._pairs[row]), most, size)
        self._values.make_room(int(self._pairs[row]), most, size)
        before = len(self._odd_blocks)
        odd_count = rowkernel.split_properties(
            buf, slices, count, row, self._names.data, self._names.offsets, self._values.data,
            self._values.offsets, self._pairs, self._present, self._odd, before,
        )  # fmt: skip
        for odd_row in self._odd[before:odd_count].tolist():
            start, end = slices[odd_row - row, rowkernel.PROPERTIES :][:2].tolist()
            self._odd_blocks.append(buf[start:end].tobytes())

    def size(self, row: int) -> int:
        """Bytes gathered for the rows before ``row``."""
        pair = self._pairs[row]
        return int(self._names.offsets[pair]) + int(self._values.offsets[pair])

    def finish(self, count: int) -> pa.Array:
        """Return the first ``count`` rows and start over."""
        fields = [self._kind.key_field, self._kind.item_field]
        pair_count, pairs = int(self._pairs[count]), self._pairs[: count + 1].copy()
        entries = pa.StructArray.from_arrays(
            [
                pa.Array.from_buffers(field.type, pair_count, [None, *strings.buffers(pair_count)])
                for field, strings in zip(fields, (self._names, self._values), strict=True)
            ],
            fields=fields,
        )
        buffers = [_validity(self._present[:count]), pa.py_buffer(pairs)]
        array = pa.Array.from_buffers(self._kind, count, buffers, children=[entries])
        odd = self._odd[: len(self._odd_blocks)].tolist()
        said = [
            list(properties.as_texts(properties.parse(block)).items()) for block in self._odd_blocks
        ]
        self._odd_blocks = []
        return _replaced(array, odd, said)


@lru_cache(maxsize=1 << 16)
def _host_text(data: bytes) -> str:
    return host_text(decode_host(data))


class RowBuilder:
    """Builds the next record batch of ``schema``.

    Kernels decode into ``numbers`` and ``slices`` from row ``count`` on; then ``take`` gathers the
    values.
    """

    def __init__(self, schema: pa.Schema, capacity: int, max_inflated_bytes: int | None) -> None:
        """``schema`` has fields of ROWS_SCHEMA in any order, and perhaps INTERNAL; ``capacity``
        limits a batch's rows."""
        self.numbers: NDArray[np.int64] = np.empty((rowkernel.NUMBER_FIELDS, capacity), np.int64)
        self.slices: NDArray[np.int64] = np.empty((capacity, rowkernel.SLICE_FIELDS), np.int64)
        self.count = 0
        self.finds_names = bool({"tags", "keys"} & set(schema.names))
        """Whether the kernels look for TAGS and KEYS."""
        self._marks_internal = INTERNAL.name in schema.names
        self._schema = schema
        self._capacity = capacity
        self._gathered: dict[str, _BytesColumn | _PropertiesColumn] = {}
        for field in schema:
            if field.name in _TEXTS:
                self._gathered[field.name] = _TextColumn(
                    field.type, _TEXTS[field.name], capacity, rowkernel.gather_texts, 0, java.decode
                )
            elif field.name in _HOSTS:
                self._gathered[field.name] = _TextColumn(
                    field.type, _HOSTS[field.name], capacity, rowkernel.gather_hosts,
                    rowkernel.HOST_TEXT_LENGTH, _host_text,
                )  # fmt: skip
            elif field.name == "properties":
                self._gathered[field.name] = _PropertiesColumn(field.type, capacity)
        inflates = max_inflated_bytes is not None and "bodyCompression" in schema.names
        if "body" in schema.names or inflates:
            self._gathered["body"] = _BytesColumn(pa.binary(), rowkernel.BODY, capacity)
        self._max_inflated = max_inflated_bytes if "body" in self._gathered else None

    @property
    def is_full(self) -> bool:
        """Whether a batch is due; there may still be room for rows."""
        size = sum(column.size(self.count) for column in self._gathered.values())
        return self.count >= self._capacity or size >= BYTES_PER_BATCH

    def take(self, buf: NDArray[np.uint8], count: int) -> None:
        """Add the ``count`` rows that a kernel has decoded from ``buf``."""
        if count:
            for column in self._gathered.values():
                column.take(buf, self.slices[:count], self.count)
            if self._marks_internal:
                rowkernel.mark_internal(buf, self.slices, count, self.count, self.numbers)
        self.count += count

    def add_damaged(self, offset: int, size: int, status: Status) -> None:
        """Add the row of a range that is not a record; there must be room for it."""
        rowkernel.put_damaged(self.count, 0, offset, size, int(status), self.numbers, self.slices)
        self.take(_NOTHING, 1)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows so far and start over.

        Nothing is yielded without rows, and several batches if inflated bodies are large.
        """
        count, self.count = self.count, 0
        if not count:
            return
        numbers = self.numbers[:, :count]
        arrays = {name: column.finish(count) for name, column in self._gathered.items()}
        batch = pa.RecordBatch.from_arrays(
            [
                arrays[field.name] if field.name in arrays else _number_column(field, numbers)
                for field in self._schema
            ],
            schema=self._schema,
        )
        if self._max_inflated is None:
            yield batch
            return
        sys_flags = numbers[rowkernel.SYS_FLAG].copy()
        yield from _inflated(batch, arrays["body"], sys_flags, self._max_inflated)


def _number_column(field: pa.Field, numbers: NDArray[np.int64]) -> pa.Array:
    """A column that depends only on the numbers of its rows."""
    status, sys_flags = numbers[rowkernel.STATUS], numbers[rowkernel.SYS_FLAG]
    present = status == Status.OK
    if field.name in _NUMBERS:
        if field.name in _ALSO_OF_DAMAGED:
            present = np.ones_like(present)
        return _fixed(field.type, numbers[_NUMBERS[field.name]], present)
    if field.name in _TIMESTAMPS:
        milliseconds = numbers[_TIMESTAMPS[field.name]]
        present &= (milliseconds >= TIMESTAMPS_MS.start) & (milliseconds < TIMESTAMPS_MS.stop)
        return _fixed(field.type, milliseconds * 1000, present)
    if field.name == "transactionType":
        kinds = (sys_flags & SysFlag.TRANSACTION_MASK) >> _TRANSACTION_SHIFT
        return _said(_TRANSACTION_TYPES, kinds, present)
    if field.name == "bodyCompression":
        kinds = (sys_flags & SysFlag.COMPRESSION_MASK) >> _COMPRESSION_SHIFT
        return _said(_COMPRESSIONS, kinds, present & (sys_flags & SysFlag.COMPRESSED != 0))
    if field.name == "corruptReason":
        return _said(_REASONS, status, ~present)
    if field.name == INTERNAL.name:
        return pa.array(numbers[rowkernel.INTERNAL] != 0)
    raise ValueError(f"no column {field.name} in the rows of a commitlog")


def _fixed(kind: pa.DataType, values: NDArray[np.int64], present: NDArray[np.bool_]) -> pa.Array:
    data = values.astype(f"i{kind.bit_width // 8}")
    return pa.Array.from_buffers(kind, len(data), [_validity(present), pa.py_buffer(data)])


def _said(words: pa.Array, codes: NDArray[np.int64], present: NDArray[np.bool_]) -> pa.Array:
    if not present.any():
        return pa.nulls(len(codes), words.type)
    if present.all() and (codes == codes[0]).all():
        return pa.repeat(words[int(codes[0])], len(codes))
    return words.take(pa.array(codes, mask=~present))


def _validity(present: NDArray[Any]) -> pa.Buffer | None:
    return None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))


def _size(slices: NDArray[np.int64], column: int) -> int:
    return int((slices[:, column + 1] - slices[:, column]).sum())


def _replaced(array: pa.Array, rows: Sequence[int], values: Sequence[Any]) -> pa.Array:
    """``array`` with other values in some rows."""
    if not rows:
        return array
    indices = np.arange(len(array))
    indices[rows] = len(array) + np.arange(len(rows))
    return pa.concat_arrays([array, pa.array(values, array.type)]).take(pa.array(indices))


def _inflated(
    batch: pa.RecordBatch, bodies: pa.Array, sys_flags: NDArray[np.int64], limit: int
) -> Iterator[pa.RecordBatch]:
    """Split the batch into parts, with the bodies inflated that fit ``limit`` bytes."""
    start, size = 0, 0
    plain: dict[int, bytes] = {}
    for row in np.flatnonzero(sys_flags & SysFlag.COMPRESSED).tolist():
        codec = compression(int(sys_flags[row]))
        body = inflate(bodies[row].as_buffer(), codec, limit) if codec else None
        if body is None:
            continue
        plain[row - start] = body
        size += len(body)
        if size >= BYTES_PER_BATCH:
            yield _with_plain(batch.slice(start, row + 1 - start), plain)
            start, size, plain = row + 1, 0, {}
    if start < len(bodies):
        yield _with_plain(batch.slice(start), plain)


def _with_plain(batch: pa.RecordBatch, plain: dict[int, bytes]) -> pa.RecordBatch:
    for name, values in (("body", list(plain.values())), ("bodyCompression", [None] * len(plain))):
        index = batch.schema.get_field_index(name)
        if index >= 0:
            column = _replaced(batch.column(index), list(plain), values)
            batch = batch.set_column(index, batch.schema.field(index), column)
    return batch
