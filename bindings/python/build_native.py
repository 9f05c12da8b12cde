"""Makes `tutti._native`: the declarations of tutti.h for Python, by cffi in API mode, one module for CPython 3.9 and
later.

    pip install ./bindings/python    calls ffi(), for the libtutti that pkg-config finds
    build_native.py CDEF OUTPUT.c    writes the module's source for declarations of a build tree; make compiles it
"""
import os
import subprocess
import sys
from collections import namedtuple
from typing import List

import cffi

# Functions of this package that the library calls: tutti_py_stop is the hook of tutti_on_wait, tutti_py_choose chooses
# a peer for tutti_gossip_publish.
CALLBACKS = """
extern "Python" int tutti_py_stop(void *);
extern "Python" int tutti_py_choose(void *);
"""

Library = namedtuple("Library", "version declarations includes folder")


def ask(*words: str) -> str:
    """Returns what pkg-config says about libtutti."""
    pkg_config = os.environ.get("PKG_CONFIG", "pkg-config")
    try:
        return subprocess.run([pkg_config, *words, "tutti"], check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        sys.exit("tutti: pkg-config does not find libtutti: install Tutti by `make install`, and set PKG_CONFIG_PATH "
                 "to PREFIX/lib/pkgconfig if its prefix is your own")


def library() -> Library:
    """Returns the libtutti to build for, from pkg-config."""
    return Library(ask("--modversion"), ask("--variable=declarations"), [ask("--variable=includedir")],
                   ask("--variable=libdir"))


def declared(declarations: str) -> cffi.FFI:
    """Returns what cffi makes of the file `declarations`, without a source to compile."""
    builder = cffi.FFI()
    with open(declarations) as file:
        builder.cdef(file.read() + CALLBACKS)
    return builder


def runtime_paths(folder: str) -> List[str]:
    """Returns where the module looks for libtutti.so beside the system's places: nowhere, if `folder` is one."""
    return [] if folder.startswith(("/usr/lib", "/lib")) else [folder]


def ffi() -> cffi.FFI:
    """Returns the module for setuptools to build."""
    found = library()
    builder = declared(found.declarations)
    builder.set_source("tutti._native", "#include <tutti.h>", libraries=["tutti"], include_dirs=found.includes,
                       library_dirs=[found.folder], runtime_library_dirs=runtime_paths(found.folder),
                       py_limited_api=True)
    return builder


def main(declarations: str, output: str) -> None:
    builder = declared(declarations)
    builder.set_source("tutti._native", "#include <tutti.h>")
    builder.emit_c_code(output)


if __name__ == "__main__":
    main(*sys.argv[1:])
