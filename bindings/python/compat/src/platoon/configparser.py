"""Which hosts and devices an experiment uses.

What comes first decides: the variables PLATOON_HOSTS and PLATOON_DEVICES, then the files of PLATOONRC from right to
left, then ./.platoonrc, then ~/.platoonrc. The files have a section [platoon] with `hosts`, and a section [devices]
with a line for each host. All of this is read when the module is imported.
"""
from __future__ import annotations

import configparser as _configparser
import os
import shlex
from typing import List

PLATOON_DEVICES = os.getenv("PLATOON_DEVICES", "")
PLATOON_HOSTS = os.getenv("PLATOON_HOSTS", "")


def config_files_from_platoonrc() -> List[str]:
    """The files, of which a later one has precedence."""
    files = [os.path.expanduser("~/.platoonrc"), os.path.join(os.getcwd(), ".platoonrc")]
    return files + [os.path.expanduser(name) for name in os.getenv("PLATOONRC", "").split(os.pathsep) if name]


config_files = config_files_from_platoonrc()
platoon_cfg = _configparser.ConfigParser({
    "USER": os.getenv("USER", os.path.basename(os.path.expanduser("~"))), "PID": str(os.getpid()),
    **{name: os.getenv(name, "") for name in ("LSCRATCH", "TMPDIR", "TEMP", "TMP")}})
platoon_cfg.read(config_files)


def _words(text: str, separators: str) -> List[str]:
    splitter = shlex.shlex(text, posix=True)
    splitter.whitespace = separators
    splitter.whitespace_split = True
    return list(splitter)


def _fetch(variable: str, section: str, option: str) -> List[str]:
    if variable:
        return _words(variable, ",")
    try:
        try:
            text = platoon_cfg.get(section, option)
        except _configparser.InterpolationError:
            text = platoon_cfg.get(section, option, raw=True)
    except (_configparser.NoOptionError, _configparser.NoSectionError):
        raise KeyError(option) from None
    return _words(text, " \t\r\n,")


def fetch_devices_for_host(host: str) -> List[str]:
    """The names of the devices to use on a host. Raises KeyError: nothing says which."""
    return _fetch(PLATOON_DEVICES, "devices", host)


def fetch_hosts() -> List[str]:
    """The names of the hosts that take part. Raises KeyError: nothing says which."""
    return _fetch(PLATOON_HOSTS, "platoon", "hosts")
