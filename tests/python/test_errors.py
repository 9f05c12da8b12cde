"""Each code of the library has a class, with the bases that fit, and each error can be pickled."""
import errno
import pickle
import threading

import pytest
import tutti
from tutti import errors
from tutti._call import call, ffi, lib

BASES = {errno.EINVAL: ValueError, errno.ETIMEDOUT: TimeoutError, errno.EINPROGRESS: TimeoutError,
         errno.EINTR: InterruptedError, errno.ECONNRESET: ConnectionResetError, errno.ENOTCONN: ConnectionError,
         errno.ECONNABORTED: ConnectionAbortedError, errno.EBADMSG: ValueError, errno.ENOENT: LookupError,
         errno.EHOSTDOWN: ConnectionError, errno.ERANGE: IndexError, errno.EMSGSIZE: ValueError,
         errno.EMFILE: OSError, errno.ENOMEM: MemoryError, errno.ESHUTDOWN: ConnectionError,
         errno.ECHILD: RuntimeError, errno.EADDRINUSE: ConnectionError, errno.EHOSTUNREACH: ConnectionError,
         errno.EACCES: PermissionError, errno.EPERM: PermissionError, errno.ENOTSUP: NotImplementedError}
CODES = [n for n in errno.errorcode if lib.tutti_error_name(n) != ffi.NULL]


@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
def test_class(code):
    e = errors.from_code(-code, "rank 7 (host b) went down")
    assert isinstance(e, tutti.Error) and isinstance(e, BASES.get(code, Exception))
    name = "EDEADLK" if code == errno.EDEADLK else errno.errorcode[code]  # which has another name for this number
    assert (e.errno, e.name, e.sentence, str(e)) == (code, name, e.sentence, e.sentence)
    assert e.rank == (7 if code in (errno.ECONNRESET, errno.ENOTCONN, errno.ECONNABORTED) else None)
    assert not isinstance(e, OSError) or e.strerror == e.sentence
    assert type(e).__doc__ and (type(e) is errors.SystemFailure or "E" in type(e).__doc__)


@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
def test_pickle(code):
    e = errors.from_code(-code, "rank 7 (host b) went down")
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        f = pickle.loads(pickle.dumps(e, protocol))
        assert (type(f), f.errno, f.rank, str(f), f.args) == (type(e), e.errno, e.rank, str(e), e.args)


def test_every_documented_code_has_a_class():
    documented = ("EINVAL EINPROGRESS EINTR ETIMEDOUT ECONNRESET ENOTCONN ECANCELED ECONNABORTED EBADMSG EAGAIN ENOENT "
                  "ESTALE EHOSTDOWN ERANGE EMSGSIZE EEXIST EMFILE ENOMEM ESHUTDOWN ECHILD ENODEV EADDRINUSE "
                  "EHOSTUNREACH EACCES EPROTO EPERM ENOTSUP EALREADY ENOSPC EBUSY EDEADLK")
    for name in documented.split():
        assert type(errors.from_code(-getattr(errno, name), "")) not in (tutti.Error, errors.SystemFailure), name


def test_raised_by_hand():
    e = errors.TimedOut("late")
    assert (e.errno, e.rank, str(e)) == (errno.ETIMEDOUT, None, "late")


def test_sentence_of_the_thread():
    """Two threads fail at once, many times: each gets its own sentence."""
    place, wrong = ffi.new("tutti **"), []

    def fail(function, *args):
        for _ in range(2000):
            try:
                call(function, *args)
            except errors.InvalidArgument as e:
                if function.__name__ not in str(e):
                    wrong.append(str(e))

    threads = [threading.Thread(target=fail, args=a) for a in ((lib.tutti_log_next, ffi.NULL),
                                                               (lib.tutti_join, ffi.NULL, ffi.NULL),
                                                               (lib.tutti_op_new, ffi.NULL))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and place
