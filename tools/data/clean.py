"""Makes plain text of what packages hold."""

import re
import unicodedata

ROLE = re.compile(r":[a-zA-Z:+-]+:`~?([^`<]+?)(?:\s*<[^>]*>)?`")
LINK = re.compile(r"`([^`<]+?)\s*<[^>]*>`_+")
DIRECTIVE = re.compile(r"^\s*\.\. ")
NAMED_LINK = re.compile(r"`([^`]+)`_+")
OPTION = re.compile(r"^\s+:[\w-]+:(\s|$)")
CODE = ("code-block", "console", "code", "testcode", "sourcecode", "parsed-literal")
LEFT_OUT = ("toctree", "index", "currentmodule", "module", "highlight", "contents", "image", "figure", "include", "raw")
LABELS = {"note": "Note: ", "warning": "Warning: ", "admonition": "", "seealso": "See also: "}


def tidy(text):
    """NFC, plain line ends, no control characters, no blanks at line ends, at most one empty line."""
    text = unicodedata.normalize("NFC", text).replace("\r\n", "\n").replace("\r", "\n")
    text = "".join(c for c in text if c in "\n\t" or unicodedata.category(c) != "Cc")
    text = re.sub(r"[ \t]+\n", "\n", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"


def joined_lines(text):
    """Paragraphs whose lines were broken at a fixed width, on one line each."""
    return "\n\n".join(re.sub(r"\s*\n\s*", " ", p.strip()) for p in re.split(r"\n\s*\n", text) if p.strip())


def indent_of(line):
    return len(line) - len(line.lstrip())


def restructured(text):
    """reStructuredText without roles, link targets, tables of contents and directives' options; code stays."""
    lines, left_out, options = [], None, False
    for line in text.split("\n"):
        if left_out is not None:  # inside a block that goes whole
            if not line.strip() or indent_of(line) > left_out:
                continue
            left_out = None
        if options and OPTION.match(line):
            continue
        options = False
        if DIRECTIVE.match(line):
            name, marks, rest = line.strip()[3:].partition("::")
            name, rest, options = name.strip(), rest.strip(), True
            if not marks or name in LEFT_OUT or name.startswith(("_", "|")):
                left_out = indent_of(line)
                continue
            if name in CODE:
                continue
            line = " " * indent_of(line) + LABELS.get(name, f"{name} " if rest else "") + rest
            if not line.strip():
                continue
        lines.append(line)
    text = NAMED_LINK.sub(r"\1", LINK.sub(r"\1", ROLE.sub(r"\1", "\n".join(lines)))).replace("``", "`")
    return tidy(re.sub(r"\\(['*_|`\"])", r"\1", re.sub(r"::\n", ":\n", text)))
