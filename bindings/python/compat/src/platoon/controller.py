"""An older name of platoon.channel.controller."""
from .channel.controller import Controller

__all__ = ["Controller"]
