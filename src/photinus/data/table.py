"""Rows of any columns as PyTorch's map-style data set: an Arrow table in a file without a name."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


class TableRows:
    """What a `DataLoader` or a trainer reads: `len(rows)`, and `rows[i]`, a dict by column.

    The numbers and texts are mapped from a file that ends with the process.

    Args:
        batches: Arrow record batches of one schema; none make no rows.

    Example:
        >>> import pyarrow as pa
        >>> rows = TableRows([pa.record_batch({"text": ["good", "bad"], "label": [1, 0]})])
        >>> len(rows), rows[1]
        (2, {'text': 'bad', 'label': 0})
    """

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        import pyarrow as pa

        self.table = pa.table({})
        """All rows: `datasets.Dataset(rows.table)` reads them without a copy."""
        with tempfile.TemporaryFile(prefix="photinus-") as file:
            writer = None
            for batch in batches:
                writer = writer or pa.ipc.new_stream(file, batch.schema)
                writer.write_batch(batch)
            if writer is not None:
                writer.close()
                file.flush()
                mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                self.table = pa.ipc.open_stream(pa.py_buffer(mapping)).read_all()
        self._starts = [0]
        self._chunks = self.table.to_batches()
        for chunk in self._chunks:
            self._starts.append(self._starts[-1] + chunk.num_rows)

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Returns one row: column -> a number, a text, bytes, or a list."""
        from bisect import bisect_right

        position = int(index) + (len(self) if index < 0 else 0)
        if not 0 <= position < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        chunk = bisect_right(self._starts, position) - 1
        row: dict[str, Any] = (
            self._chunks[chunk].slice(position - self._starts[chunk], 1).to_pylist()[0]
        )
        return row

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (row for chunk in self._chunks for row in chunk.to_pylist())
