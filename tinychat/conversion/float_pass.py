"""A checkpoint's own forward pass in float32, layer by layer over some texts, for calibration and quality reports."""

from collections.abc import Sequence
from copy import copy
from itertools import accumulate
from typing import Any

import numpy as np

from tinychat.conversion.float_stages import Cell, FloatStages, Linear
from tinychat.conversion.source import Floats, Source
from tinychat.engine.arguments import Batch, scratch_of
from tinychat.engine.dims import dims_of
from tinychat.engine.forward import embed_ids, pick_hidden, predict, run_layer
from tinychat.engine.named_tensors import NamedTensors, named_caches
from tinychat.engine.parameters import parameters_of
from tinychat.engine.stages import layer_of


class FloatPass:
    """`engine.forward` in NumPy.

    Hidden states, float32 [T, D], are those of all texts, one after another; `firsts` are the first rows of each, and
    T. Behind them stand three more residual streams, slots, the vectors that routers carry on, or what is held for
    loops, where the model has such.
    """

    def __init__(self, source: Source, texts: Sequence[Sequence[int]]) -> None:
        self._source = source
        self._parameters, self._dims = parameters_of(source.config, NamedTensors(source.config)), dims_of(source.config)
        ids = [token for text in texts for token in text]
        positions = [position for text in texts for position in range(len(text))]
        self.firsts = [0, *accumulate(len(text) for text in texts)]
        counts, none = [len(ids), len(ids), len(texts)], np.zeros(0, np.int64)
        arrays = [np.array(each, np.int64) for each in (counts, ids, positions, positions, [], self.firsts)]
        self._batch = Batch(*arrays, *[none] * 8)
        self._caches = named_caches(source.config)
        self._inputs: Floats | None = None

    def other(self) -> "FloatPass":
        """Return a pass over the same texts, whose layers share keys and values among themselves."""
        found = copy(self)
        found._caches = named_caches(self._source.config)
        return found

    def embed(self) -> Floats:
        """Return the hidden states that the first layer gets."""
        s = scratch_of(Cell)
        embed_ids(FloatStages(self._source, self._source.linear), self._parameters, self._dims, s, self._batch)
        self._inputs = s.inputs.value
        return self._hidden_of(s)

    # Callers refuse results that are not finite.
    @np.errstate(over="ignore", invalid="ignore")
    def run_layer(self, index: int, hidden: Floats, linear: Linear | None = None) -> Floats:
        """Run a decoder layer once, with other linears than the checkpoint's own, if they are given.

        index : in `ModelConfig.layer_runs`.
        """
        s, stages = self._scratch(hidden), FloatStages(self._source, linear or self._source.linear)
        p, s.inputs.value = self._parameters, self._inputs
        run_layer(stages, layer_of(p.layers, index), p.inputs, self._dims, self._caches, s, None, self._batch)
        return self._hidden_of(s)

    def last_inputs(self, hidden: Floats) -> Floats:
        """Return the inputs of the output matrix: the hidden states behind the last norm."""
        s, stages = self._scratch(hidden), FloatStages(self._source, self._source.linear)
        pick_hidden(stages, len(hidden), self._parameters.streams, self._dims, s, self._batch)
        return self._source.normed(self._parameters.norm, s.last_hidden.value)

    def logits(self, hidden: Floats) -> Floats:
        """Return the logits [T, V] of some of the last layer's hidden states."""
        s, logits = self._scratch(hidden), Cell()
        predict(FloatStages(self._source, self._source.linear), self._parameters, self._dims, s, self._batch, logits)
        found: Floats = logits.value
        return found

    def _scratch(self, hidden: Floats) -> Any:
        """Return scratch with hidden states."""
        s, experts = scratch_of(Cell), self._source.config.experts
        s.hidden.value, others = np.split(hidden, [self._source.config.hidden_size], axis=1)
        if experts and experts.router_size and not others.size:
            others = np.zeros((len(hidden), experts.router_size), np.float32)
        self._beside(s).value = others if others.size else None
        return s

    def _hidden_of(self, s: Any) -> Floats:
        """Return the hidden states that a layer left in scratch."""
        hidden: Floats = s.hidden.value
        others = self._beside(s).value
        return hidden if others is None else np.concatenate([hidden, others], axis=1)

    def _beside(self, s: Any) -> Any:
        """Return where scratch has what layers carry on beside the residual stream."""
        experts = self._source.config.experts
        if self._source.config.normalized:
            return s.last_hidden
        return s.experts.states if experts and experts.router_size else s.streams.others
