"""Each public function of tutti.h has a way to it from Python, or a reason in without.list."""
import pathlib
import re
import warnings

import tutti
from tutti._native import lib

FUNCTIONS = {name for name in dir(lib) if name.startswith("tutti_") and name != "tutti_py_stop"}


def called():
    """Returns the functions that the package's sources name."""
    sources = pathlib.Path(tutti.__file__).parent.rglob("*.py")
    return {name for source in sources for name in re.findall(r"\blib\.(tutti_\w+)", source.read_text())}


def excused():
    """Returns the functions of without.list: a name and its reason on each line."""
    lines = pathlib.Path(__file__).with_name("without.list").read_text().splitlines()
    return dict(line.split(None, 1) for line in lines if line and not line.startswith("#"))


def test_list_is_up_to_date():
    assert len(FUNCTIONS) > 100
    assert not set(excused()) - FUNCTIONS, "without.list names functions that tutti.h does not have"
    assert not set(excused()) & called(), "without.list names functions that the package calls"


def test_each_function_has_a_way():
    missing = FUNCTIONS - called() - set(excused())
    if missing:
        warnings.warn("no way from Python: " + " ".join(sorted(missing)))
