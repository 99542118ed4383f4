"""Images and videos of a conversation: paths that stay inside their folder, images that rows carry."""

import base64
import binascii
import hashlib
import os
import pathlib

MAGIC = ((b"\x89PNG", ".png"), (b"\xff\xd8\xff", ".jpg"), (b"GIF8", ".gif"), (b"BM", ".bmp"), (b"RIFF", ".webp"))


class RowError(Exception):
    """What is wrong with one row."""


class Media:
    """Where pictures lie, and how the output names them: relative to its own folder."""

    def __init__(self, folder, output):
        self.folder = pathlib.Path(folder)
        self.base = pathlib.Path(os.path.abspath(output)).parent

    def path(self, name):
        """The output's name of a file inside the media folder."""
        if not isinstance(name, str) or not name:
            raise RowError(f"expected the path of a picture or video, got {name!r}")
        pure = pathlib.PurePosixPath(name)
        if pure.is_absolute() or ".." in pure.parts or "\\" in name or "\0" in name:
            raise RowError(f'path "{name}" leaves the media folder: expected a relative path without ..')
        return self._named(self.folder / pure)

    def _named(self, path):
        path = pathlib.Path(os.path.abspath(path))
        return path.relative_to(self.base).as_posix() if path.is_relative_to(self.base) else path.as_posix()

    def store(self, content):
        """Writes an image that came inside a row, once, and names it."""
        for magic, suffix in MAGIC:
            if content.startswith(magic):
                break
        else:
            raise RowError(f"expected a PNG, JPEG, GIF, BMP or WebP image, got bytes {content[:8].hex(' ')}")
        path = self.folder / (hashlib.sha256(content).hexdigest()[:24] + suffix)
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(".part")
            part.write_bytes(content)
            part.replace(path)
        return self._named(path)

    def store_base64(self, text):
        """The same for base64, with or without a data URL's head."""
        try:
            content = base64.b64decode("".join(text.split(",", 1)[-1].split()), validate=True)
        except (binascii.Error, ValueError) as error:
            raise RowError(f"expected an image in base64, got an error: {error}") from error
        return self.store(content)
