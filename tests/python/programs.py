"""Programs that are made of several functions, for the fixture `ranks`."""
import inspect
import re
import textwrap

HEAD = """
import logging, os, re, signal, sys, time, warnings
import numpy as np
import tutti
warnings.simplefilter("error")
"""


def raises(kind, sentence, function, *args, **more):
    """Calls, and checks the class and the sentence of what is raised."""
    try:
        function(*args, **more)
    except kind as e:
        assert re.search(sentence, str(e)), e
        return
    raise AssertionError("%s did not raise %s" % (function, kind))


def together(program, *helpers):
    """Returns the text of a program that calls `program`, which may use the helpers, and `raises`."""
    text = [textwrap.dedent(inspect.getsource(f)) for f in (raises, *helpers, program)]
    return HEAD + "\n\n".join(text) + "\n%s()\n" % program.__name__
