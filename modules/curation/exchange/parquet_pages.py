"""The unpacked sizes stated by the pages of a parquet file. Readers allocate these, whatever the footer
states.

A page begins with a ``PageHeader`` in thrift's compact protocol (parquet-format, ``parquet.thrift``): its
type, its unpacked size and its stored size, then fields that are not needed here.
"""

from __future__ import annotations

from typing import Any, BinaryIO

MAX_HEADER_BYTES = 1 << 16
_UNPACKED_FIELD, _PACKED_FIELD = 2, 3
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12
_NUMBERS = (4, 5, 6)
_DEEPEST = 16


def unpacked_bytes(stream: BinaryIO, column: Any) -> int:
    """Sum the unpacked sizes of the pages of a column chunk.

    Args:
        column: its ``pyarrow.parquet.ColumnChunkMetaData``.

    Raises:
        ValueError: the data is not pages.
    """
    place = column.data_page_offset
    if column.has_dictionary_page and 0 < column.dictionary_page_offset < place:
        place = column.dictionary_page_offset
    end, total = place + column.total_compressed_size, 0
    while place < end:
        stream.seek(place)
        header = _Header(stream.read(min(MAX_HEADER_BYTES, end - place)))
        sizes = header.sizes()
        total += sizes[_UNPACKED_FIELD]
        place += header.at + sizes[_PACKED_FIELD]
    return total


class _Header:
    """The header bytes of a page. ``at`` is the number of bytes read."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def sizes(self) -> dict[int, int]:
        """Read the header to its end and return the two sizes by field."""
        found = {
            field: value
            for field, value in self._fields(0)
            if field in (_UNPACKED_FIELD, _PACKED_FIELD) and value is not None
        }
        if len(found) != 2 or min(found.values()) < 0:
            raise ValueError("a page does not say how large it is")
        return found

    def _fields(self, depth: int) -> list[tuple[int, int | None]]:
        """(number, value) of the fields of a struct. Only integers have a value."""
        made: list[tuple[int, int | None]] = []
        number = 0
        while (head := self._byte()) != 0:
            number = number + (head >> 4) if head >> 4 else self._number()
            made.append((number, self._value(head & 15, depth)))
        return made

    def _value(self, kind: int, depth: int, in_list: bool = False) -> int | None:
        if depth > _DEEPEST:
            raise ValueError("a page's header is nested too deeply")
        if kind in _NUMBERS:
            return self._number()
        if kind in (_TRUE, _FALSE):
            # in a struct, the type itself carries the value
            self._pass(int(in_list))
        elif kind in (_BYTE, _DOUBLE):
            self._pass(1 if kind == _BYTE else 8)
        elif kind == _BINARY:
            self._pass(self._varint())
        elif kind == _STRUCT:
            self._fields(depth + 1)
        elif kind in (_LIST, _SET, _MAP):
            self._several(kind, depth + 1)
        else:
            raise ValueError("a page's header holds an unknown type")
        return None

    def _several(self, kind: int, depth: int) -> None:
        if kind == _MAP:
            count = self._varint()
            types = self._byte() if count else 0
            kinds = [types >> 4, types & 15]
        else:
            head = self._byte()
            count = head >> 4 if head >> 4 < 15 else self._varint()
            kinds = [head & 15]
        # each takes at least one byte, even an empty one
        if count > len(self.data) - self.at:
            raise ValueError("a page's header is incomplete")
        for _ in range(count):
            for each in kinds:
                self._value(each, depth, in_list=True)

    def _byte(self) -> int:
        self._pass(1)
        return self.data[self.at - 1]

    def _varint(self) -> int:
        value = shift = 0
        while (part := self._byte()) & 128:
            value |= (part & 127) << shift
            shift += 7
            if shift > 63:
                raise ValueError("a page's header holds a number without end")
        return value | part << shift

    def _number(self) -> int:
        coded = self._varint()
        return coded >> 1 ^ -(coded & 1)

    def _pass(self, count: int) -> None:
        self.at += count
        if self.at > len(self.data):
            raise ValueError("a page's header is incomplete")
