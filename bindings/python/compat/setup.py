"""What pyproject.toml cannot say: nothing is left in the source, where the next build would take it for its own."""
import tempfile

from setuptools import setup

scratch = tempfile.TemporaryDirectory(prefix="tutti-compat-build-")
setup(options={"build": {"build_base": scratch.name}, "egg_info": {"egg_base": scratch.name}})
