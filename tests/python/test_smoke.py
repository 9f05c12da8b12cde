"""The module of the build tree: it is libtutti's, and moves bytes between processes."""
import os
import re

from tutti._native import ffi, lib


def test_version():
    assert lib.tutti_abi() == lib.TUTTI_ABI
    assert re.fullmatch(r"\d+\.\d+\.\d+", ffi.string(lib.tutti_version()).decode())


def test_program_in_path():
    assert os.popen("tutti --version").read().split()[-1] == ffi.string(lib.tutti_version()).decode()


def test_alone(ranks):
    def program():
        from tutti._native import ffi, lib
        job = ffi.new("tutti **")
        assert lib.tutti_join(ffi.NULL, job) == 0, ffi.string(lib.tutti_why())
        print(lib.tutti_rank(job[0]), lib.tutti_size(job[0]))
        lib.tutti_leave(job[0])

    assert ranks(1, program) == ["0 1\n"]


def test_allreduce(ranks):
    def program():
        import numpy as np
        from tutti._native import ffi, lib
        job = ffi.new("tutti **")
        assert lib.tutti_join(ffi.NULL, job) == 0, ffi.string(lib.tutti_why())
        x = np.arange(4, dtype="f4") + lib.tutti_rank(job[0])
        memory = ffi.from_buffer(x)
        assert lib.tutti_allreduce(job[0], memory, memory, 4, lib.TUTTI_F32, lib.TUTTI_SUM, ffi.NULL) == 0
        print(*x)
        lib.tutti_leave(job[0])

    assert ranks(2, program) == ["1.0 3.0 5.0 7.0\n"] * 2
