"""Reads rows of published data sets: JSON lists, JSON lines, parquet; one row in memory at a time."""

import json
import pathlib

from archives import DataError

CHUNK = 1 << 20


def input_files(paths):
    """The data files named, or lying in the folders named, sorted within each folder."""
    files = []
    for path in map(pathlib.Path, paths):
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.suffix in (".json", ".jsonl", ".parquet"))
            if not inside:
                raise DataError(f"{path} holds no .json, .jsonl or .parquet file: expected one")
            files += inside
        elif path.exists():
            files.append(path)
        else:
            raise DataError(f"{path} does not exist: expected a data file or a folder of them")
    return files


def read(path):
    """Yields (row number from 1, row, None) or, for a line that is no JSON, (row number, None, what is wrong)."""
    path = pathlib.Path(path)
    if path.suffix == ".parquet":
        yield from _parquet(path)
    elif path.suffix in (".json", ".jsonl"):
        try:
            with open(path, encoding="utf-8-sig") as file:
                first = file.read(1)
                while first.isspace():
                    first = file.read(1)
                if first == "[":
                    yield from _list(path, file)
                else:
                    file.seek(0)
                    yield from _lines(file)
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: expected UTF-8, got an error: {error}") from error
    else:
        raise DataError(f"{path}: unknown kind of file, expected .json, .jsonl or .parquet")


def _lines(file):
    for number, line in enumerate(file, 1):
        if line.strip():
            try:
                yield number, json.loads(line), None
            except (ValueError, RecursionError) as error:
                yield number, None, f"expected a JSON object on the line, got an error: {error}"


def _list(path, file):
    """Elements of a JSON list whose opening bracket is read already."""
    decoder, text, at, number, size = json.JSONDecoder(), "", 0, 1, CHUNK
    while True:
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        if at < len(text) and text[at] == "]":
            return
        wrong = None
        try:
            if at == len(text):
                raise ValueError("the list is not closed")
            row, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            end, wrong = len(text), error
        if end == len(text):  # what was read may be a part alone
            more = file.read(size)
            if more:
                text, at, size = text[at:] + more, 0, size * 2
                continue
            if wrong is not None:
                raise DataError(f"{path}: row {number}: expected a JSON value, got an error: {wrong}")
        yield number, row, None
        number, at, size = number + 1, end, CHUNK


def _parquet(path):
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise DataError(f"{path}: reading parquet needs the Python package pyarrow: pip install pyarrow") from error
    number = 1
    try:
        for batch in parquet.ParquetFile(path).iter_batches(batch_size=64):
            for row in batch.to_pylist():
                yield number, row, None
                number += 1
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: row {number}: expected a parquet file, got an error: {error}") from error
