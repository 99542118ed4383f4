"""One libtorch a process: the native module shares that of the `torch` package where both are used.

The module is linked with the libtorch it was built with. Where `torch` is, or can be, imported beside it, the
libraries of that package are loaded first, so both use one copy; another version is refused, for its objects and
functions are not those that the module was built for.
"""

import ctypes
import importlib.metadata
import importlib.util
import pathlib
import sys


def _plain(version):
    return version.split("+", maxsplit=1)[0]


def _installed():
    """Version and folder of the `torch` that an import would find, or has found."""
    if "torch" in sys.modules and hasattr(sys.modules["torch"], "__version__"):
        module = sys.modules["torch"]
        return str(module.__version__), pathlib.Path(module.__file__).parent
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    folder = pathlib.Path(spec.origin).parent
    try:
        return importlib.metadata.version("torch"), folder
    except importlib.metadata.PackageNotFoundError:
        return None


def prepare(built_with):
    """Loads the libraries of the installed `torch`, if any. Raises ImportError where it is not `built_with`."""
    found = _installed()
    if found is None:
        return  # the linker finds those that the module was built with
    version, folder = found
    if _plain(version) != _plain(built_with):
        raise ImportError(
            f"coppice was built with libtorch {built_with}, and this environment has torch {version}; a process can "
            f"hold one of them. Install torch=={_plain(built_with)}, or use an environment without torch.")
    if "torch" not in sys.modules:
        for name in ("libc10.so", "libtorch_cpu.so", "libtorch.so"):
            ctypes.CDLL(str(folder / "lib" / name))
