"""The Python blocks of the pages run as programs, and print what the pages show.

A comment above each block names the program's file:

    <!-- mean.py -->            a line `$ tutti run -n 4 python3 mean.py` of the page, further down, runs the program
    <!-- mean.py, 2 ranks -->   no line of the page does: `tutti run -n 2 python3 mean.py` runs the program
    <!-- not run: why -->       the program needs what the tests do not have

With TEST_TORCH=1 the programs run that import torch, else the others. Below a line with `$` stands what the line
prints; lines come in any order, and "..." stands for any lines, or any part of one. A block that is a file in
examples/python has the path as its name.
"""
import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest
import tutti
from conftest import clean_environment

SOURCE = pathlib.Path(__file__).resolve().parents[2]
MARK = re.compile(r"<!-- (\S+\.py)(?:, (\d+) ranks?)? -->|<!-- not run: (.+) -->")


def blocks(page):
    """Yields (line above the block, language, text) of each fenced block of a page."""
    lines = iter((SOURCE / page).read_text().splitlines())
    above = ""
    for line in lines:
        if line.startswith("```"):
            text = []
            for inner in lines:
                if inner.startswith("```"):
                    break
                text.append(inner)
            yield above, line[3:], "\n".join(text) + "\n"
        above = line


def commands(text):
    """Yields (command, what it prints) of a block with `$` lines."""
    for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
        command, _, said = part.partition("\n")
        yield command, said


def programs(page):
    """Returns [(page, name, source, [(command, what it prints)])]; a command belongs to the last program it names."""
    found = {}
    for above, language, text in blocks(page):
        mark = MARK.fullmatch(above)
        if language == "python":
            assert mark, "%s: no comment says how this block is run:\n%s" % (page, text)
            name, ranks, why_not = mark.groups()
            assert name not in found, "%s has two programs %s" % (page, name)
            if not why_not:
                runs = [("tutti run -n %s python3 %s" % (ranks, name), None)] if ranks else []
                found[name] = (page, name, text, runs)
        for command, said in commands(text) if language != "python" else ():
            for name in found:
                if os.path.basename(name) in shlex.split(command):
                    found[name][3].append((command, said))
    return list(found.values())


def imports_torch(source):
    return re.search(r"^(import|from) (tutti\.)?torch\b|^import .*\btutti\.torch\b", source, re.M) is not None


GUIDE, README = programs("docs/python.md"), programs("README.md")
ALL = GUIDE + [each for each in README if each[1:] not in [other[1:] for other in GUIDE]]  # each program runs once
PROGRAMS = [each for each in ALL if imports_torch(each[2]) == (os.environ.get("TEST_TORCH") == "1")]


def agree(said, shown):
    """True if a program has said what a page shows, in any order of the lines."""
    left, wanted = said.splitlines(), shown.splitlines()
    for line in wanted:
        pattern = ".*".join(map(re.escape, line.split("...")))
        found = [each for each in left if re.fullmatch(pattern, each)] if line != "..." else []
        if found:
            left.remove(found[0])
        elif line != "...":
            return False
    return not left or "..." in wanted


@pytest.fixture
def shell(tmp_path):
    """Gives shell(command), which runs a line of a page with the Python of the tests, and returns (status, output)."""
    bin = tmp_path / "bin"
    bin.mkdir()
    for name, more in ("python3", ""), ("torchrun", ' "%s"' % pathlib.Path(__file__).with_name("torchrun.py")):
        (bin / name).write_text('#!/bin/sh\nexec "%s"%s "$@"\n' % (sys.executable, more))
        (bin / name).chmod(0o755)

    def run(command):
        done = subprocess.run(command, shell=True, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=120,
                              env=clean_environment(PATH="%s:%s" % (bin, os.environ["PATH"])))
        return done.returncode, done.stdout.decode(errors="replace")

    return run


@pytest.mark.parametrize("page, name, source, runs", PROGRAMS, ids=["%s:%s" % each[:2] for each in PROGRAMS])
def test_page(tmp_path, shell, page, name, source, runs):
    assert runs, "no line of %s runs %s" % (page, name)
    if "/" in name:
        assert (SOURCE / name).read_text().split("\n", 1)[1] == source, "%s is not the block of %s" % (name, page)
    (tmp_path / os.path.basename(name)).write_text(source)
    for command, shown in runs:
        status, said = shell(command)
        assert status == 0 and (shown is None or agree(said, shown)), "%s\n%s" % (command, said)


def test_all_blocks_are_found():
    assert len(GUIDE) >= 10 and README
    assert agree("a\nb\n", "b\na\n") and agree("a\nx\nb\n", "a\n...\nb\n") and agree("a (7) b\n", "a (...) b\n")
    for said, shown in ("a\n", "b\n"), ("a\nb\n", "a\n"), ("a\n", "a\na\n"), ("a\nc\n", "a\n...\nb\n"):
        assert not agree(said, shown), (said, shown)


def test_all_errors_are_explained():
    rows = re.findall(r"^\| `(\w+)` \| (E\w+)? ?\| ([\w, ]*?) ?\|", (SOURCE / "docs/python.md").read_text(), re.M)
    classes = {each for each in vars(tutti.errors).values()
               if isinstance(each, type) and issubclass(each, tutti.Error) and each is not tutti.Error}
    assert {each.__name__ for each in classes} == {name for name, _, _ in rows}
    for name, code, bases in rows:
        kind = getattr(tutti.errors, name)
        assert [each.__name__ for each in kind.__bases__[1:]] == [each for each in bases.split(", ") if each], name
        assert code == kind("").name, name


def anchors(page):
    """Returns the anchors of a page's headings, as they are made for links."""
    headings = re.findall(r"^#+ (.*)", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links():
    page = SOURCE / "docs/python.md"
    links = re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", page.read_text())
    assert len(links) > 20
    for path, anchor in links:
        target = page.parent / path if path else page
        assert target.exists() and (not anchor or anchor in anchors(target)), (path, anchor)
