"""An older name of platoon.channel.controller, which also runs as a program."""
import sys

from .channel.controller import Controller, spawn_controller

__all__ = ["Controller", "spawn_controller"]

if __name__ == "__main__":
    sys.exit(spawn_controller())
