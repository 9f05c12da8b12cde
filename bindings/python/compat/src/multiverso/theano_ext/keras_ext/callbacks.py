"""A callback for model.fit."""
from __future__ import annotations

from typing import Any, Optional

from .param_manager import KerasParamManager

try:
    from keras.callbacks import Callback
except ImportError:
    Callback = object  # a program calls on_batch_end itself


class MVCallback(Callback):  # type: ignore[misc]
    """Keeps the model of `fit` together on all workers: model.fit(..., callbacks=[MVCallback(model)]).

    model: see KerasParamManager. freq: calls sync_all_param after every freq-th batch.
    """

    def __init__(self, model: Any, freq: int = 1) -> None:
        super().__init__()
        if freq < 1:
            raise ValueError("freq is %r, and must be from 1 up" % (freq,))
        self.kpm = KerasParamManager(model)
        self.freq, self.cur_n = freq, 0

    def on_batch_end(self, batch: int, logs: Optional[Any] = None) -> None:
        """Keras calls this after each batch."""
        self.cur_n += 1
        if self.cur_n % self.freq == 0:
            self.kpm.sync_all_param()
