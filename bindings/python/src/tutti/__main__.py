"""`python -m tutti` and the console script `tutti`: the program `tutti`, as in `python -m tutti run -n 4 train.py`."""
from __future__ import annotations

import os
import shutil
import sys


def _program() -> str:
    """Returns the path of the program: the one that came with this package, else the first in PATH."""
    bundled = os.path.join(os.path.dirname(__file__), "bin", "tutti")
    if os.access(bundled, os.X_OK):
        return bundled
    this = os.path.realpath(sys.argv[0])
    for folder in os.get_exec_path():
        found = shutil.which("tutti", path=folder)
        if found and os.path.realpath(found) != this and not _is_script(found):
            return found
    sys.exit("tutti: the program `tutti` is not in PATH: add PREFIX/bin of the installed Tutti to it")


def _is_script(path: str) -> bool:
    """Tells a console script, of this or of another environment, from the program."""
    with open(path, "rb") as file:
        return file.read(2) == b"#!"


def main() -> None:
    """Becomes the program `tutti`, with the arguments of this process."""
    program = _program()
    os.execv(program, ["tutti", *sys.argv[1:]])


if __name__ == "__main__":
    main()
