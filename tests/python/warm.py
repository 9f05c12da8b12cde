"""A warm interpreter: it has imported what most ranks import, and forks a child for each program that it is asked for.

The child is what a fresh interpreter is after the same imports. Its environment, folder, output, arguments and session
are its own. The program is its __main__. It ends as interpreters end (threads, atexit, finalization), as no frame but
the program's is on its stack. The warm process has no second thread and has joined no job.

conftest.py starts it as `python -c 'exec(__import__("warm").serve(FD))'`, and sends it pairs (word, argument)."""
import asyncio  # noqa: F401: for the programs, as the next ones
import faulthandler
import gc
import json  # noqa: F401
import logging  # noqa: F401
import os
import sys
from multiprocessing.connection import Connection

import numpy as np
import tutti.aio  # noqa: F401


def become(script, arguments, output, cwd, env):
    """Makes this child the process of a program. Returns the program's code, for the caller to run as __main__."""
    said, nothing = os.open(output, os.O_WRONLY), os.open(os.devnull, os.O_RDONLY)
    for source, number in (nothing, 0), (said, 1), (said, 2):
        os.dup2(source, number)
    os.close(said)
    os.close(nothing)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    faulthandler.enable()
    np.random.seed()  # the children would have one state
    sys.argv[:] = [script, *arguments]
    sys.path[:2] = [os.path.dirname(script)]  # for "" and this folder
    sys.modules["__main__"].__file__ = script
    with open(script, "rb") as file:
        return compile(file.read(), script, "exec")


def serve(fd):
    """Answers "poll" with a process's exit status, or None while the process runs, and lets the child itself answer
    "start" with its number. Ends with the connection. Returns in the children alone."""
    connection = Connection(fd)
    gc.collect()
    gc.freeze()  # a collection in a child would copy these pages
    while True:
        try:
            word, argument = connection.recv()
        except EOFError:
            sys.exit()
        if word == "poll":
            pid, status = os.waitpid(argument, os.WNOHANG)
            connection.send(os.waitstatus_to_exitcode(status) if pid else None)
            continue
        if os.fork() == 0:
            os.setsid()
            connection.send(os.getpid())  # not before the session: it may be killed as a group
            connection.close()
            return become(*argument)
