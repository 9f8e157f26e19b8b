"""Read a CSV export into a header and rows: any common encoding and delimiter, also compressed with gzip.

Tested in tests/cost/bills/test_reader.py.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import zlib
from dataclasses import dataclass
from pathlib import Path

from cost.bills.bill import BillError
from cost.csv_cells import unescape_cell

_GZIP = b"\x1f\x8b"
_OTHER_FORMATS = {
    b"PK\x03\x04": "a ZIP archive or a spreadsheet; unpack it, or export the bill as CSV",
    b"PAR1": "a Parquet file; export the bill as CSV",
    b"%PDF": "a PDF; download the bill as CSV",
}
"""What the first bytes of a file say about it."""


@dataclass(frozen=True)
class Table:
    """A header and the rows below it with their line numbers. `sha256` is the hash of the uncompressed file."""

    sha256: str
    header: list[str]
    rows: list[tuple[int, list[str]]]


def read_table(path: Path) -> Table:
    """Read a file. Raises BillError: the file cannot be read, is no text, or is empty."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BillError(f"{path}: cannot be read: {error.strerror}") from error
    if content.startswith(_GZIP):
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise BillError(f"{path}: the gzip file is damaged ({error}); download it again") from error
    text = _decode(content, path)
    first = next((line for line in text.splitlines() if line.strip()), "")
    delimiter = max(",;\t", key=first.count)
    reader = csv.reader(io.StringIO(text), delimiter=delimiter)
    rows = [
        (reader.line_num, [unescape_cell(cell) for cell in row]) for row in reader if any(cell.strip() for cell in row)
    ]
    if not rows:
        raise BillError(f"{path}: is empty")
    header = [cell.strip() for cell in rows[0][1]]
    return Table(hashlib.sha256(content).hexdigest(), header, rows[1:])


def _decode(content: bytes, path: Path) -> str:
    for start, what in _OTHER_FORMATS.items():
        if content.startswith(start):
            raise BillError(f"{path}: is {what}")
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return content.decode("utf-16")
    for encoding in ("utf-8-sig", "gb18030", "cp1252") if b"\0" not in content else ():
        try:
            return content.decode(encoding)
        except UnicodeDecodeError:
            continue
    raise BillError(f"{path}: is no text in UTF-8, UTF-16, GB 18030 or Windows-1252; export it again as UTF-8 CSV")
