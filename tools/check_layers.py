#!/usr/bin/env python3
"""Fails when a source file includes a folder that its own folder may not use.

The table is the one of docs/architecture.md: a folder may include itself, what its row lists, and
whatever those rows allow in turn. Tests (*_test.cpp) may include anything.
"""

import pathlib
import re
import sys

ALLOWED = {
    "core": [],
    "ops": ["core"],
    "nn": ["ops"],
    "loader": ["ops"],
    "processor": ["core"],
    "vision": ["core"],
    "models": ["nn", "loader"],
    "cache": ["ops"],
    "eviction": ["cache"],
    "attention": ["nn", "cache"],
    "engine": ["models", "attention", "eviction", "processor", "vision"],
    "train": ["models", "attention", "processor"],
    "eval": ["engine"],
    "study": ["eval"],
    "server": ["engine"],
}
INCLUDE = re.compile(r'^\s*#\s*include\s+"coppice/([a-z_]+)/', re.MULTILINE)


def closure(folder):
    """Every folder that `folder` may include."""
    seen, todo = {folder, "core"}, [folder]
    while todo:
        for below in ALLOWED[todo.pop()]:
            if below not in seen:
                seen.add(below)
                todo.append(below)
    return seen


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    faults = []
    for path in sorted((root / "coppice").rglob("*")):
        if path.suffix not in (".h", ".cpp", ".cu") or path.name.endswith("_test.cpp"):
            continue
        folder = path.relative_to(root / "coppice").parts[0]
        if folder not in ALLOWED:
            faults.append(f"{path.relative_to(root)}: folder {folder}/ has no row in check_layers.py")
            continue
        for used in INCLUDE.findall(path.read_text()):
            if used not in closure(folder):
                faults.append(f"{path.relative_to(root)}: {folder}/ may not include {used}/")
    print("\n".join(faults) if faults else "layers: clean")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
