"""What pyproject.toml cannot say: the version is libtutti's, and the module `tutti._native` is made by cffi."""
import os
import sys
import tempfile

from setuptools import setup

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import build_native  # noqa: E402

# Nothing is left in the source, where the next build would take it for its own.
scratch = tempfile.TemporaryDirectory(prefix="tutti-build-")
setup(
    version=build_native.library().version,
    cffi_modules=["build_native.py:ffi"],
    options={
        "bdist_wheel": {"py_limited_api": "cp39"},
        "build": {"build_base": scratch.name},
        "egg_info": {"egg_base": scratch.name},
    },
)
