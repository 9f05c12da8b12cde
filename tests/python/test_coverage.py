"""Each public function of tutti.h has a way to it from Python, or a reason in without.list. Each public class and
function of the package has a docstring, and is named in a test."""
import importlib
import inspect
import pathlib
import pkgutil
import re

import tutti
from tutti._native import lib

HERE = pathlib.Path(__file__).parent
FUNCTIONS = {name for name in dir(lib) if name.startswith("tutti_") and not name.startswith("tutti_py_")}


def called():
    """Returns the functions that the package's sources name."""
    sources = pathlib.Path(tutti.__file__).parent.rglob("*.py")
    return {name for source in sources for name in re.findall(r"\blib\.(tutti_\w+)", source.read_text())}


def excused():
    """Returns the functions of without.list: a name and its reason on each line."""
    lines = (HERE / "without.list").read_text().splitlines()
    return dict(line.split(None, 1) for line in lines if line and not line.startswith("#"))


def members(owner, path, module):
    """Gives (path, object) for the public classes and functions of a module or class that are written there."""
    for name, value in vars(owner).items():
        inner = getattr(value, "fget", None) or getattr(value, "__func__", value)
        if name.startswith("_") or getattr(inner, "__module__", None) != module:
            continue
        if inspect.isclass(inner):
            yield "%s.%s" % (path, name), inner
            yield from members(inner, "%s.%s" % (path, name), module)
        elif inspect.isfunction(inner):
            yield "%s.%s" % (path, name), inner


def public():
    """Gives (path, object) for all of the package but tutti.torch, which has tests of its own."""
    for found in pkgutil.iter_modules(tutti.__path__, "tutti."):
        if "._" not in found.name and found.name != "tutti.torch":
            module = importlib.import_module(found.name)
            yield from members(module, found.name, found.name)


def test_list_is_up_to_date():
    assert len(FUNCTIONS) > 100
    assert not set(excused()) - FUNCTIONS, "without.list names functions that tutti.h does not have"
    assert not set(excused()) & called(), "without.list names functions that the package calls"


def test_each_function_has_a_way():
    assert FUNCTIONS - called() <= set(excused())


def test_docstrings():
    assert len(list(public())) > 50
    assert [path for path, it in public() if not vars(it).get("__doc__", it.__doc__)] == []


def test_tests():
    words = {word for test in HERE.rglob("*.py") for word in re.findall(r"\w+", test.read_text())}
    assert [path for path, it in public() if path.rsplit(".", 1)[1] not in words
            and not (inspect.isclass(it) and issubclass(it, tutti.Error))] == []
