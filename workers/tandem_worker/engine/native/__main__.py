"""`python -m tandem_worker.engine.native`: compile the kernels into this environment. Part of making it."""

from __future__ import annotations

import sys

from tandem_worker.engine.native.build import ARCHITECTURES, BuildError, build


def main() -> int:
    """0: they are there. 1: they are not, and why; the engine then runs on torch alone."""
    try:
        for architecture in ARCHITECTURES:
            sys.stdout.write(f"native kernels: {build(architecture)}\n")
    except BuildError as error:
        sys.stderr.write(f"no native kernels: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
