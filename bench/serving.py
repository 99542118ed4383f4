"""What measurements of the server share: the program, a model, a server from tests/e2e/serve_client.py."""

import argparse
import os
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
ASSETS = pathlib.Path(os.environ.get("COPPICE_ASSETS") or os.path.join(
    os.environ.get("COPPICE_CACHE") or os.path.expanduser("~/.cache/coppice"), "assets"))
SMOLLM2 = ASSETS / "SmolLM2-135M-Instruct.Q4_1.gguf"
sys.path.insert(0, str(ROOT / "tests/e2e"))


def parser(about):
    """With what every script takes; `use` reads it."""
    made = argparse.ArgumentParser(description=about)
    made.add_argument("--coppice", default=str(ROOT / "build/release/coppice"))
    made.add_argument("--model", default=str(SMOLLM2), help="GGUF file, or tiny: the model that tests make [SmolLM2]")
    return made


def use(args):
    """Lets serve_client be imported. The model's file, and the folder that holds it if it was made."""
    os.environ["COPPICE_BINARY"] = args.coppice
    if args.model != "tiny":
        return args.model, None
    import tiny_gguf  # pylint: disable=import-outside-toplevel
    folder = tempfile.TemporaryDirectory()
    path = os.path.join(folder.name, "tiny.gguf")
    tiny_gguf.write(path)
    return path, folder
