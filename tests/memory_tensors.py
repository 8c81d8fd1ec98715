"""Tensors of checkpoints that are not in a file."""

from pathlib import Path

import reference

from tinychat.checkpoint.tensors import Tensor, Tensors


class MemoryTensor(Tensor):
    """A tensor of an array; `codes` of a form are read as such."""

    path = Path("memory")

    def __init__(self, array, codes=None, form=None):
        self.array, self._codes, self._form = array, codes, form

    @property
    def shape(self):
        return self.array.shape

    def read(self, start, stop):
        return self.array[start:stop]

    @property
    def form(self):
        return self._form

    def read_codes(self, start, stop):
        return self._codes.rows(slice(start, stop))


def memory_tensors(arrays):
    """Return the tensors of a checkpoint by the arrays of a dict."""
    return Tensors(Path("memory"), {name: MemoryTensor(array) for name, array in arrays.items()})


def coded_tensor(codes, form):
    """Return a tensor of some codes."""
    return MemoryTensor(reference.values_of_codes(codes), codes, form)
