"""Controllers and workers."""
from .controller import Controller
from .worker import Worker

__all__ = ["Controller", "Worker"]
