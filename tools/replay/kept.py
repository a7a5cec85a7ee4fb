"""Counts what autograd keeps between forward and backward, each storage once."""

import weakref
from collections import defaultdict

import torch


class _Saved:
    """A saved tensor; it is counted as long as this lives."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor):
        self.tensor = tensor


class Kept:
    """Bytes that are kept now, and at the most when a forward has ended."""

    def __init__(self):
        self.weights = set()
        self.live = {}
        self.peak = 0
        self.at_peak = {}
        self.where = ""
        self._hooks = None

    def leave_out(self, tensors):
        """Do not count the storages of these: weights and gradients."""
        self.weights |= {tensor.untyped_storage()._cdata for tensor in tensors}

    def _pack(self, tensor):
        storage = tensor.untyped_storage()
        key, saved = storage._cdata, _Saved(tensor)
        if key in self.weights or isinstance(tensor, torch.nn.Parameter):
            return saved
        one = self.live.setdefault(key, [0, storage, self.where])
        one[0] += 1
        weakref.finalize(saved, self._drop, key)
        return saved

    def _drop(self, key):
        one = self.live[key]
        one[0] -= 1
        if not one[0]:
            del self.live[key]

    def __enter__(self):
        self._hooks = torch.autograd.graph.saved_tensors_hooks(
            self._pack, lambda saved: saved.tensor
        )
        self._hooks.__enter__()
        return self

    def __exit__(self, *error):
        self._hooks.__exit__(*error)

    @property
    def now(self):
        """Bytes that are kept now."""
        return sum(one[1].nbytes() for one in self.live.values())

    def forward_ended(self):
        """Look whether this is the peak."""
        if self.now > self.peak:
            self.peak = self.now
            self.at_peak = self.by_place()

    def by_place(self):
        """Return bytes by the part of the model that kept them."""
        found = defaultdict(int)
        for _, storage, where in self.live.values():
            found[where] += storage.nbytes()  # none where the contents are thrown away for now
        return dict(found)
