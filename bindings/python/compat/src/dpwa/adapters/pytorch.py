"""Averages a PyTorch module with the modules of other nodes."""
from __future__ import annotations

import hashlib
from typing import Any, Iterator, Tuple

import torch

from ..dpwa import DpwaConnection

_ALIGN = 16


class DpwaPyTorchAdapter:
    """The parameters of `net`, a torch.nn.Module, in the cluster of a config file: see DpwaConnection.

    Parameters have any type of torch, on any device. Buffers of the module are not averaged, as in dpwa.
    """

    def __init__(self, net: Any, name: str, config_file: Any) -> None:
        self._net = net
        self._conn = DpwaConnection(name, config_file)
        self._own = self._peers = torch.empty(0, dtype=torch.uint8)  # each: a digest of the module, the parameters

    @torch.no_grad()
    def update_send(self, loss: float) -> None:
        """Lets others read the parameters from now on, and starts to read those of a peer. Does not wait for others.

        loss: of this model. Raises ValueError if the module has other parameters than at the first call.
        """
        digest, size = self._measure()
        if not self._own.numel():
            self._own, self._peers = (torch.empty(size, dtype=torch.uint8) for _ in range(2))
        if size != self._own.numel():
            raise ValueError("the module's parameters take %d bytes, and took %d: all updates have the same parameters"
                             % (size, self._own.numel()))
        self._own[:len(digest)] = digest
        for param, place in self._places(self._own):
            place.copy_(param)
        self._conn.update_send(self._own.numpy(), loss)

    @torch.no_grad()
    def update_wait(self, loss: float) -> None:
        """Waits for the peer's parameters, at most timeout_ms: param = factor * peer's + (1 - factor) * param.

        loss: of the model after the step. Without a peer nothing changes. Raises ValueError if the peer has another
        module.
        """
        if not self._own.numel():
            return
        factor = self._conn._wait_into(self._peers.numpy(), loss)
        if factor is None:
            return
        digest, _ = self._measure()
        if not torch.equal(self._peers[:len(digest)], digest):
            raise ValueError("the peer's module has other parameters: names, shapes and types must be the same in all "
                             "nodes")
        for param, place in self._places(self._peers):
            param.copy_(factor * place.to(param.device) + (1 - factor) * param)

    def _measure(self) -> Tuple[Any, int]:
        """A digest of what the parameters are, as a tensor, and how many bytes a blob has."""
        text, size = hashlib.sha256(), 32
        for name, param in self._net.named_parameters():
            text.update(("%s %s %s\n" % (name, tuple(param.shape), param.dtype)).encode())
            size += -(-param.numel() * param.element_size() // _ALIGN) * _ALIGN
        return torch.tensor(list(text.digest()), dtype=torch.uint8), size

    def _places(self, blob: Any) -> Iterator[Tuple[Any, Any]]:
        """Each parameter, and a tensor of its shape and type in the blob."""
        at = 32
        for _, param in self._net.named_parameters():
            n = param.numel() * param.element_size()
            yield param, blob[at:at + n].view(param.dtype).view(param.shape)
            at += -(-n // _ALIGN) * _ALIGN


__all__ = ["DpwaPyTorchAdapter"]
