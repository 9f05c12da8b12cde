"""Prints _native.pyi: the type of each function and constant of `tutti._native.lib`, for mypy.

    stub.py _native.abi3.so    takes the module alone, as the package may not fit it yet
"""
import importlib.util
import sys
from typing import Any

spec = importlib.util.spec_from_file_location("tutti._native", sys.argv[1])
native = importlib.util.module_from_spec(spec)
ffi, lib = native.ffi, native.lib

HEAD = '''"""The declarations of tutti.h. stub.py has written this file."""
from typing import Any, type_check_only

ffi: Any

@type_check_only
class _Library:'''


def annotation(ctype: Any) -> str:
    """Returns what Python passes for a C type: pointers and structs are cdata, of which mypy knows nothing."""
    if ctype.kind == "enum" or ctype.kind == "primitive" and ctype.cname not in ("double", "float"):
        return "int"
    return {"void": "None", "primitive": "float"}.get(ctype.kind, "Any")


def member(name: str) -> str:
    """Returns the line of a function, a constant, or a function of this package that the library calls."""
    value = getattr(lib, name)
    if isinstance(value, int):
        return "    %s: int" % name
    if isinstance(value, ffi.CData):
        return "    %s: Any" % name
    kind = ffi.typeof(value)
    arguments = "".join(", _%d: %s" % (i, annotation(arg)) for i, arg in enumerate(kind.args))
    return "    def %s(self%s, /) -> %s: ..." % (name, arguments, annotation(kind.result))


if __name__ == "__main__":
    print(HEAD)
    print("\n".join(member(name) for name in dir(lib)))
    print("\nlib: _Library")
