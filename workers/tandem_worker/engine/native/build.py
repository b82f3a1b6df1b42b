"""Compiling the kernels: once, when the environment is made. A starting worker only looks for the result.

The file's name holds a digest of sources and flags, so that a library of other sources is never taken for this one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).parent
FILES: Final = ("vector.h", "product.h", "rows.h", "attention.h", "prompt.h", "copy.h", "kernels.cpp")
# Fixed instruction sets, not this machine's: an image is built on one machine and runs on another. By torch's names.
ARCHITECTURES: Final = {
    "AVX512": ("-march=x86-64-v4", "-mtune=icelake-server", "-mprefer-vector-width=512"),
    "AVX2": ("-march=x86-64-v3", "-mtune=znver3"),
}
FLAGS: Final = (
    *("-std=c++17", "-O3", "-fno-math-errno", "-fopenmp", "-fPIC", "-shared", "-Wall", "-Wextra"),
    # GCC 12 and 13 take the intrinsics' deliberately undefined registers for mistakes.
    *("-Wno-uninitialized", "-Wno-maybe-uninitialized"),
)
COMPILE_S: Final = 300.0


class BuildError(Exception):
    """The kernels were not made; the text says why."""


def digest() -> str:
    """12 hex characters that change with the sources and the flags."""
    running = hashlib.blake2b(repr((FLAGS, ARCHITECTURES)).encode(), digest_size=6)
    for name in FILES:
        running.update((SOURCES / name).read_bytes())
    return running.hexdigest()


def library_file(architecture: str) -> Path:
    """Where these sources' library is, once it was built: inside the environment, which workers only read."""
    return Path(sys.prefix) / "lib/tandem" / f"kernels-{digest()}-{architecture.lower()}.so"


def build(architecture: str) -> Path:
    """Compile for one of ARCHITECTURES unless it is there. Raises BuildError."""
    target = library_file(architecture)
    if target.is_file():
        return target
    compiler = shutil.which(os.environ.get("CXX") or "g++")
    if compiler is None:
        raise BuildError("there is no g++ on the PATH (CXX names another compiler)")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            made = Path(scratch) / target.name
            _compile(compiler, ARCHITECTURES[architecture], made)
            made.replace(target)  # whole or not at all, whoever else builds it now
    except OSError as error:
        raise BuildError(f"{target} cannot be written: {error}") from error
    return target


def _compile(compiler: str, architecture: tuple[str, ...], made: Path) -> None:
    command = [compiler, *FLAGS, *architecture, str(SOURCES / "kernels.cpp"), "-o", str(made)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_S, check=False)  # noqa: S603
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{compiler} did not end within {COMPILE_S:.0f} s") from error
    if done.returncode:
        raise BuildError(f"{compiler} failed: {done.stderr[:500]}")
