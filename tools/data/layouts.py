"""The published layouts of the paper's data sets, each a function from a row to a document.

A document is {"id", "source", "messages": [{"role", "content"}]}; a content is a string or a list of
{"type": "text", "text"}, {"type": "image", "path"} and {"type": "video", "path"}.
"""

import re

from media import RowError
from passages import seeded

ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
PLACEHOLDER = re.compile(r"<image>|<ImageHere>|<video>")


def text_of(row, key):
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise RowError(f'expected a text in "{key}", got {shown(value)}')
    return value


def shown(value):
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def turns_of(row, *keys):
    """[(role, text)] of the first list of turns there is, written {role, content} or {from, value}."""
    for key in keys:
        if row.get(key) is not None:
            break
    else:
        raise RowError(f"expected a list of turns in {' or '.join(keys)}, got the keys {', '.join(map(str, row))}")
    if not isinstance(row[key], list) or not row[key]:
        raise RowError(f'expected a list of turns in "{key}", got {shown(row[key])}')
    turns = []
    for i, turn in enumerate(row[key], 1):
        if not isinstance(turn, dict):
            raise RowError(f'turn {i} of "{key}": expected an object, got {shown(turn)}')
        role = turn.get("role", turn.get("from"))
        text = turn.get("content", turn.get("value"))
        if not isinstance(role, str) or role not in ROLES:
            raise RowError(f'turn {i} of "{key}": expected a role of {", ".join(ROLES)}, got {shown(role)}')
        if not isinstance(text, str):
            raise RowError(f'turn {i} of "{key}": expected a text, got {shown(text)}')
        turns.append((ROLES[role], text))
    talk = [role for role, _ in turns if role != "system"]
    for i, role in enumerate(talk):
        if role != ("user", "assistant")[i % 2]:
            raise RowError(f'"{key}": expected user and assistant in turn, the user first, got {shown(talk)}')
    if len(talk) < 2:
        raise RowError(f'"{key}": expected a question and an answer, got {len(talk)} turns')
    return turns


def placed(turns, kind, paths):
    """Messages whose placeholders became `paths`, in order. Without any, all stand before the first question."""
    places = sum(len(PLACEHOLDER.findall(text)) for _, text in turns)
    if paths and places == 0:
        first = next(i for i, (role, _) in enumerate(turns) if role == "user")
        turns = list(turns)
        turns[first] = ("user", "<image>" * len(paths) + turns[first][1])
        places = len(paths)
    if places != len(paths):
        raise RowError(f"expected as many places for pictures as pictures, got {places} and {len(paths)}")
    rest = iter(paths)
    messages = []
    for role, text in turns:
        parts = PLACEHOLDER.split(text)
        if len(parts) == 1:
            messages.append({"role": role, "content": text})
            continue
        content = []
        for i, part in enumerate(parts):
            if i:
                content.append({"type": kind, "path": next(rest)})
            part = part.strip("\n")
            if part.strip():
                content.append({"type": "text", "text": part})
        messages.append({"role": role, "content": content})
    return messages


def listed(value):
    """No picture, one, or a list of them, as a list."""
    if value is None or value == "":
        return []
    return value if isinstance(value, list) else [value]


def pictures(row, media):
    """Paths of a row's images: named, or embedded as bytes."""
    paths = []
    for image in listed(row.get("image", row.get("images"))):
        if isinstance(image, dict) and isinstance(image.get("bytes"), bytes) and image["bytes"]:
            paths.append(media.store(image["bytes"]))
        else:
            paths.append(media.path(image.get("path") if isinstance(image, dict) else image))
    return paths


def openr1_math(row, media):
    """OpenR1-Math-220k: problem, and messages whose answer is a verified trace of reasoning."""
    if row.get("messages"):
        return [{"role": role, "content": text} for role, text in turns_of(row, "messages")]
    generations, checks = row.get("generations"), row.get("correctness_math_verify") or []
    if not isinstance(generations, list) or not generations:
        raise RowError(f'expected "messages" or a list in "generations", got {shown(generations)}')
    good = [g for g, right in zip(generations, checks) if right and isinstance(g, str)]
    answer = (good or generations)[0]
    if not isinstance(answer, str) or not answer.strip():
        raise RowError(f'expected a text in "generations", got {shown(answer)}')
    return [{"role": "user", "content": text_of(row, "problem")}, {"role": "assistant", "content": answer}]


def with_images(row, media):
    """LLaVA-NeXT and M4-Instruct: conversations with <image>, image as a path, paths or bytes."""
    return placed(turns_of(row, "conversations"), "image", pictures(row, media))


def r1_onevision(row, media):
    """R1-Onevision: one image in base64, conversations whose <image> may be missing."""
    paths = []
    for image in listed(row.get("image")):
        if not isinstance(image, str):
            raise RowError(f'expected base64 in "image", got {shown(image)}')
        paths.append(media.store_base64(image))
    return placed(turns_of(row, "conversations"), "image", paths)


def with_video(row, media):
    """LLaVA-Video: conversations with <image> where the video stands."""
    paths = [media.path(video) for video in listed(row.get("video"))]
    if not paths:
        raise RowError(f'expected a path in "video", got {shown(row.get("video"))}')
    return placed(turns_of(row, "conversations"), "video", paths)


def mmdu(row, media):
    """MMDU-45k: many images, <ImageHere>; the paths begin with a folder of the authors' machine."""
    paths = []
    for image in listed(row.get("image")):
        if not isinstance(image, str):
            raise RowError(f'expected paths in "image", got {shown(image)}')
        paths.append(media.path("mmdu-45k_pics/" + image.replace("\\", "/").rsplit("/", 1)[-1]))
    return placed(turns_of(row, "conversations"), "image", paths)


def synth_long(row, media):
    """Synth-Long-SFT32K: conversations over many passages."""
    return [{"role": role, "content": text} for role, text in turns_of(row, "conversations", "messages")]


def booksum(row, media):
    """BookSum: books or chapters with summaries, one of which is taken; both published layouts."""
    text = text_of(row, "text" if "text" in row else "chapter")
    summaries = listed(row["summary_text"] if "summary_text" in row else row.get("summary"))
    texts = [s.get("text") if isinstance(s, dict) else s for s in summaries]
    texts = [s for s in texts if isinstance(s, str) and s.strip()]
    if not texts:
        raise RowError(f"expected a summary, got {shown(row.get('summary'))}")
    chosen = seeded("summary", len(text), text[:200]).choice(texts)
    return [
        {"role": "user", "content": f"Summarise this text.\n\n{text}"},
        {"role": "assistant", "content": chosen},
    ]


# name: (function, keys that may hold an id)
SETS = {
    "openr1-math": (openr1_math, ("uuid", "id")),
    "llava-next": (with_images, ("id",)),
    "m4-instruct": (with_images, ("sample_id", "id")),
    "llava-video": (with_video, ("id",)),
    "r1-onevision": (r1_onevision, ("id",)),
    "mmdu-45k": (mmdu, ("id",)),
    "synth-long": (synth_long, ("id",)),
    "booksum": (booksum, ("bid", "book_id", "id")),
}
