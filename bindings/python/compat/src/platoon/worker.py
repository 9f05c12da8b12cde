"""An older name of platoon.channel.worker."""
from .channel.worker import Worker

__all__ = ["Worker"]
