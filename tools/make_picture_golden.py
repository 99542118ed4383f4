#!/usr/bin/env python3
"""Writes tests/golden/pictures: small picture files, and the pixels that Pillow reads from them.

    ~/.cache/coppice/oracle/bin/python tools/make_picture_golden.py

expected.json: one object a file: name, width, height, rgb (base64 of [height, width, 3]) and
tolerance, the difference that the rules of coppice/vision/picture.h allow. "resized" lists windows
of resized pictures.
"""

import base64
import io
import json
import pathlib
import struct
import zlib

import numpy
from PIL import Image, ImageOps

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/pictures"
RANDOM = numpy.random.default_rng(7)


def smooth(width, height, channels):
    """A picture with edges, slopes and some noise."""
    y, x = numpy.mgrid[0:height, 0:width].astype(float)
    planes = [
        127 + 90 * numpy.sin(x / (3 + c)) + 40 * numpy.cos(y / (2 + c)) + 20 * ((x + y) % 7 > 3)
        for c in range(channels)
    ]
    pixels = numpy.stack(planes, -1) + RANDOM.normal(0, 6, (height, width, channels))
    return numpy.clip(pixels, 0, 255).astype(numpy.uint8)


def picture(width, height, mode):
    if mode == "P":
        return Image.fromarray(smooth(width, height, 3), "RGB").quantize(17)
    if mode == "1":
        return Image.fromarray(smooth(width, height, 1)[..., 0], "L").convert("1")
    channels = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4, "CMYK": 4}[mode]
    pixels = smooth(width, height, channels)
    return Image.fromarray(pixels[..., 0] if channels == 1 else pixels, mode)


def on_white(image):
    image = ImageOps.exif_transpose(image)
    if image.mode == "I;16":
        high = (numpy.asarray(image) >> 8).astype(numpy.uint8)
        return numpy.stack([high] * 3, -1)
    if image.mode == "CMYK":
        return numpy.asarray(image.convert("RGB"))
    image = image.convert("RGBA")
    white = Image.new("RGB", image.size, (255, 255, 255))
    white.paste(image, mask=image.getchannel("A"))
    return numpy.asarray(white)


def png_chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(
        ">I", zlib.crc32(kind + data))


def raw_png(width, height, depth, colour, rows, extra=()):
    """A PNG of any depth and colour type, without filters. `extra`: chunks before the pixels."""
    data = b"".join(b"\0" + row for row in rows)
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    chunks = [png_chunk(b"IHDR", header), *(png_chunk(k, d) for k, d in extra)]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks) + png_chunk(
        b"IDAT", zlib.compress(data)) + png_chunk(b"IEND", b"")


def saved(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def with_orientation(image, value, kind="JPEG", **options):
    exif = Image.Exif()
    exif[0x0112] = value
    return saved(image, kind, exif=exif, **options)


def files():
    """(name, bytes, tolerance)"""
    for mode in ("1", "L", "LA", "RGB", "RGBA", "P"):
        yield f"{mode}.png", saved(picture(13, 9, mode), "PNG"), 0
    wide = RANDOM.integers(0, 65536, (3, 4, 3)).astype(">u2")
    yield "rgb16.png", raw_png(4, 3, 16, 2, [row.tobytes() for row in wide]), 0
    grey = RANDOM.integers(0, 65536, (3, 4)).astype(">u2")
    yield "grey16.png", raw_png(4, 3, 16, 0, [row.tobytes() for row in grey]), 0
    both = RANDOM.integers(0, 65536, (3, 4, 2)).astype(">u2")
    yield "grey-alpha16.png", raw_png(4, 3, 16, 4, [row.tobytes() for row in both]), 0
    yield "palette1-transparent.png", raw_png(
        2, 1, 1, 3, [b"\x40"], [(b"PLTE", bytes([200, 10, 20, 5, 90, 250])), (b"tRNS", b"\x40")]), 0
    yield "pixel.png", saved(picture(1, 1, "RGB"), "PNG"), 0
    yield "photo.png", saved(picture(37, 21, "RGB"), "PNG"), 0
    yield "long.png", saved(picture(1, 900, "RGB"), "PNG"), 0
    yield "wide.png", saved(picture(900, 1, "L"), "PNG"), 0
    yield "orientation6.png", with_orientation(picture(5, 3, "RGB"), 6, "PNG"), 0

    for mode in ("L", "RGB"):
        yield f"{mode}.jpg", saved(picture(37, 21, mode), "JPEG", quality=90), 1
    yield "rgb444.jpg", saved(picture(17, 33, "RGB"), "JPEG", quality=95, subsampling=0), 1
    yield "progressive.jpg", saved(picture(40, 24, "RGB"), "JPEG", progressive=True), 1
    yield "cmyk.jpg", saved(picture(12, 10, "CMYK"), "JPEG", quality=95), 1
    plain = saved(picture(2, 2, "CMYK"), "JPEG", quality=95)
    at = plain.index(b"\xff\xee")  # without Adobe's mark
    yield "cmyk-unmarked.jpg", plain[:at] + plain[at + 16:], 1
    two = Image.new("RGB", (16, 8), (255, 0, 0))
    two.paste((0, 255, 0), (8, 0, 16, 8))
    for value in range(1, 9):
        yield f"orientation{value}.jpg", with_orientation(two, value), 1
    hurt = with_orientation(two, 6).replace(b"Exif\0\0MM\0*\0\0\0\x08", b"Exif\0\0MM\0*\xff\0\0\x08")
    yield "damaged-exif.jpg", hurt, 1

    yield "lossless.webp", saved(picture(19, 11, "RGBA"), "WEBP", lossless=True, exact=True), 0
    yield "lossy.webp", saved(picture(24, 16, "RGB"), "WEBP", quality=80), 2
    frames = [picture(10, 6, "RGB") for _ in range(3)]
    yield "animated.webp", saved(
        frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True), 0
    yield "orientation8.webp", with_orientation(picture(6, 4, "RGB"), 8, "WEBP", lossless=True), 0

    yield "P.gif", saved(picture(13, 9, "P"), "GIF"), 0
    yield "interlaced.gif", saved(picture(13, 19, "L"), "GIF", interlace=1), 0
    clear = picture(8, 8, "P")
    yield "transparent.gif", saved(clear, "GIF", transparency=3), 0
    yield "animated.gif", saved(
        frames[0], "GIF", save_all=True, append_images=frames[1:]), 0

    for mode in ("1", "L", "RGB", "RGBA", "CMYK", "P"):
        yield f"{mode}.tif", saved(picture(13, 9, mode), "TIFF"), {"RGBA": 1, "CMYK": 1}.get(mode, 0)
    for compression in ("tiff_lzw", "tiff_adobe_deflate", "packbits", "group4", "jpeg"):
        mode = "1" if compression == "group4" else "RGB"
        yield f"{compression}.tif", saved(
            picture(32, 24, mode), "TIFF", compression=compression), 2 if compression == "jpeg" else 0
    for value in (3, 5, 6):
        yield f"orientation{value}.tif", saved(
            picture(5, 3, "RGB"), "TIFF", tiffinfo={274: value}), 0


FILTERS = {"bilinear": Image.BILINEAR, "bicubic": Image.BICUBIC, "lanczos": Image.LANCZOS}


def resized():
    cases = []
    for source, sizes in {
        "photo.png": [(9, 5), (74, 42), (37, 21), (1, 1), (20, 20), (37, 40), (91, 13), (30, 4)],
        "long.png": [(3, 64), (2, 950)],
        "pixel.png": [(7, 5)],
    }.items():
        for width, height in sizes:
            for name, kind in FILTERS.items():
                image = Image.open(OUT / source).convert("RGB")
                pixels = numpy.asarray(image.resize((width, height), kind))
                cases.append({
                    "source": source, "filter": name, "width": width, "height": height,
                    "rgb": base64.b64encode(pixels.tobytes()).decode()})
    return cases


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    cases = []
    for name, data, tolerance in files():
        (OUT / name).write_bytes(data)
        pixels = on_white(Image.open(io.BytesIO(data)))
        cases.append({
            "name": name, "width": pixels.shape[1], "height": pixels.shape[0],
            "tolerance": tolerance, "rgb": base64.b64encode(pixels.tobytes()).decode()})
    text = json.dumps({"files": cases, "resized": resized()}, indent=0)
    (OUT / "expected.json").write_text(text + "\n")
    print(len(cases), "files,", len(text), "bytes of pixels")


if __name__ == "__main__":
    main()
