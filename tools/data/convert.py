#!/usr/bin/env python3
"""Turns a published data set into JSON lines of conversations, as `coppice train` reads them.

    tools/data/convert.py SET IN... OUT [--media DIR] [--skip-bad]

SET: openr1-math, llava-next, m4-instruct, llava-video, r1-onevision, mmdu-45k, synth-long or booksum.
IN: the set's .json, .jsonl or .parquet files, or folders of them. Pictures named in rows are looked for in DIR
(by default the folder of OUT), where those embedded in rows are written. OUT is there whole or not at all.
"""

import argparse
import json
import os
import pathlib
import sys

import rows
from archives import DataError
from layouts import SETS, shown
from media import Media, RowError

SHOWN_ERRORS = 20


def document_of(name, number, row, media, file):
    """One row as a document."""
    convert, id_keys = SETS[name]
    if not isinstance(row, dict):
        raise RowError(f"expected an object, got {shown(row)}")
    messages = convert(row, media)
    own = next((row[key] for key in id_keys if isinstance(row.get(key), (str, int)) and row[key] != ""), None)
    return {
        "id": f"{name}/{file.stem}#{number}" if own is None else f"{name}/{own}",
        "source": name,
        "messages": messages,
    }


def line_of(document):
    line = json.dumps(document, ensure_ascii=False) + "\n"
    try:
        line.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RowError(f"expected text, got half a character (a lone surrogate): {error}") from error
    return line


def convert(name, inputs, output, media, skip_bad):
    """Returns (documents written, rows left out)."""
    output.parent.mkdir(parents=True, exist_ok=True)
    part = output.with_name(output.name + ".part")
    written, bad = 0, 0
    try:
        with open(part, "w", encoding="utf-8", newline="\n") as out:
            for file in rows.input_files(inputs):
                for number, row, wrong in rows.read(file):
                    try:
                        if wrong:
                            raise RowError(wrong)
                        line = line_of(document_of(name, number, row, media, file))
                    except RowError as error:
                        message = f"{file}: row {number}: {error}"
                        if not skip_bad:
                            raise DataError(message) from error
                        bad += 1
                        if bad <= SHOWN_ERRORS:
                            print(f"convert: {message}", file=sys.stderr)
                        continue
                    out.write(line)
                    written += 1
            out.flush()
            os.fsync(out.fileno())
        part.replace(output)
    finally:
        part.unlink(missing_ok=True)
    return written, bad


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("set", choices=sorted(SETS))
    parser.add_argument("inputs", nargs="+", metavar="IN")
    parser.add_argument("output", type=pathlib.Path, metavar="OUT")
    parser.add_argument("--media", help="folder of pictures and videos (default: the folder of OUT)")
    parser.add_argument("--skip-bad", action="store_true", help="leave malformed rows out, and say which")
    options = parser.parse_args()
    try:
        media = Media(options.media or options.output.parent, options.output)
        written, bad = convert(options.set, options.inputs, options.output, media, options.skip_bad)
    except (DataError, OSError) as error:
        print(f"convert: {error}", file=sys.stderr)
        return 1
    print(f"{options.output}: {written} documents" + (f", {bad} malformed rows left out" if bad else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
