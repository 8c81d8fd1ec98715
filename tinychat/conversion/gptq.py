"""Four-bit codes for a whole decoder, layer by layer; each linear sees the inputs that the quantized layers give it.

The calibration texts run through the layers in float32, twice: with the checkpoint's linears, and with the quantized
ones. With error feedback, a linear is to give the checkpoint's outputs for the quantized model's inputs: for inputs x
of the checkpoint and y of the quantized model, W becomes ``W + W E[(x - y) y'] H**-1`` with H = ``E[y y']``. Linears
whose outputs are added to the residual stream also correct its error so far.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tinychat.checkpoint.checkpoint import Checkpoint
from tinychat.conversion.float_pass import FloatPass
from tinychat.conversion.float_stages import Linear
from tinychat.conversion.linear_codes import Coded, Coder, Feedback, arrays_of
from tinychat.conversion.pack import Array, pack_linear
from tinychat.conversion.positive_definite import solve
from tinychat.conversion.source import Floats, Source
from tinychat.conversion.unfinished import WorkFolder
from tinychat.errors import ConversionError
from tinychat.models.layout import FREQUENT, LANES, Quantization, padded, stored_linears
from tinychat.models.tensors import Linear as LinearLayout

# Tokens on which the error of a linear's outputs is measured.
ERROR_TOKENS = 128
# Ridge of the least squares: added to the diagonal of the inputs' second moments, as a share of each entry and of their
# mean. KL of SmolLM2-135M on a README and on words of its own, with 12 texts: 0.062 and 0.067 at 0.2, 0.055 and 0.062
# at 0.5, 0.055 and 0.063 at 1; with 24 texts there is no difference between 0.5, 1 and 2.
CORRECTION_SHRINKAGE = 0.7
Packed = tuple[str, int, dict[str, Array], Sequence[float]]
"""A linear's name, the shard (0 outside the layers), its arrays as `kernels.weights` names them,
and its errors."""
Finished = Callable[[str, int], list[float] | None]
"""Called with a linear's name and shard; returns its errors if an earlier try has finished it, else None."""
STATE = "hidden_states.npz"


class TrueLinear(NamedTuple):
    """Inputs and outputs of one of the checkpoint's own linears on the texts."""

    inputs: Floats  # [T, K]
    residual: Floats | None  # [T, D]: the residual stream that its outputs are added to
    outputs: Floats | None  # [T, N], without bias; None where `correction` follows from the inputs


class Calibrated:
    """Quantizes a checkpoint's linears for the inputs that some texts, token ids, give them.

    With `feedback`, codes are chosen with error feedback (GPTQ); else by the importance of each column. Those of layers
    that run several times are chosen by the inputs that the first loop gives them.
    `output_errors` has the relative root-mean-square error of each linear's outputs, by (linear, shard).
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        quantization: Quantization,
        feedback: bool,
        texts: Sequence[Sequence[int]],
        work: WorkFolder,
    ) -> None:
        self._work = work
        self.output_errors: dict[tuple[str, int], float] = {}
        self._source = Source(checkpoint)
        self._pass = FloatPass(self._source, texts)
        self._tensors = checkpoint.tensors
        self._quantization = quantization
        self._feedback = feedback
        self._stored = {linear.name: linear for linear in stored_linears(checkpoint.config, quantization)}
        self._coder = Coder(quantization.group_size)
        # Of linears that run again. Those of all experts would take more memory than most machines have: later loops
        # run their own weights.
        self._codes: dict[tuple[str, int], Coded] = {}

    def errors(self) -> dict[str, float]:
        """Return the relative root-mean-square error of each linear's outputs, by layer, the largest first."""
        worst = sorted(self.output_errors.items(), key=lambda item: -item[1])
        return {f"{name} {layer}": round(error, 5) for (name, layer), error in worst}

    def linears(self, finished: Finished) -> Iterator[Packed]:
        """Yield every quantized linear of the model that is not finished."""
        config = self._source.config
        first, hidden, true_hidden = self._resumed(finished)
        true_pass = self._pass.other()
        for index in range(first, len(config.layer_runs)):
            true: dict[str, TrueLinear] = {}
            runs_again = config.layer_runs[index] in config.layer_runs[:index]
            if self._feedback:
                recording = None if runs_again else self._recording(true)
                true_hidden = true_pass.run_layer(index, true_hidden, recording)
            made: list[Packed] = []
            quantizing = self._quantized if runs_again else self._quantizing(made, true)
            hidden = self._pass.run_layer(index, hidden, quantizing)
            yield from made
            # The caller has written these.
            states = {"layers": np.array(index + 1), "hidden": hidden, "true_hidden": true_hidden}
            self._work.write_arrays(STATE, states)
        inputs = self._pass.last_inputs(hidden)
        for linear in self._stored.values():
            if linear.layers is None and finished(linear.name, 0) is None:
                gives_outputs = linear.name in (
                    ("embed_tokens", FREQUENT) if config.tie_word_embeddings else ("lm_head",)
                )
                yield linear.name, 0, self._table(linear, inputs if gives_outputs else None), ()

    def _resumed(self, finished: Finished) -> tuple[int, Floats, Floats]:
        """Return the first layer that is not finished, and its input hidden states, quantized and true."""
        states = self._work.read_arrays(STATE)
        layers = int(states["layers"]) if states.keys() == {"layers", "hidden", "true_hidden"} else 0
        if self._source.config.varied is not None or self._source.config.loops is not None:
            # What later layers take of embeddings and of earlier layers' keys is not written, nor are codes for loops.
            layers = 0
        found = {
            (name, shard): finished(name, shard)
            for name, linear in self._stored.items()
            for shard in range(linear.shards)
            if linear.layers is not None and linear.layer_of(shard) < layers
        }
        if layers and all(errors is not None for errors in found.values()):
            self.output_errors |= {where: errors[0] for where, errors in found.items() if errors}
            return layers, np.asarray(states["hidden"], np.float32), np.asarray(states["true_hidden"], np.float32)
        hidden = self._pass.embed()
        return 0, hidden, hidden

    def _recording(self, true: dict[str, TrueLinear]) -> Linear:
        """Return the checkpoint's own linears, which also store their inputs and outputs in `true`.

        Those of experts are left out: in the quantized model, other tokens choose them. So are those of heads.
        """

        def linear(name: str, shard: int, inputs: Floats, residual: Floats | None) -> Floats:
            outputs = self._source.linear(name, shard, inputs, residual)
            if self._stored[name].parts == 1:
                needed = not _follows_from_inputs(residual, inputs.shape[1], outputs.shape[1])
                bias = self._source.bias(name, shard) if needed else None
                true[name] = TrueLinear(
                    inputs, residual, (outputs if bias is None else outputs - bias) if needed else None
                )
            return outputs

        return linear

    def _quantizing(self, made: list[Packed], true: dict[str, TrueLinear]) -> Linear:
        """Return linears that are quantized before they give their outputs; they append their arrays to `made`."""
        runs = self._source.config.layer_runs

        def linear(name: str, shard: int, inputs: Floats, residual: Floats | None) -> Floats:
            bias = self._source.bias(name, shard)
            if self._quantization.dtype_of(name) == "int4":
                coded, wanted = self._coded(name, shard, inputs, residual, true)
                outputs = inputs @ coded.values()[: inputs.shape[1], : wanted.shape[1]]
                self.output_errors[name, shard] = output_error(some(outputs), wanted)
                layout = self._stored[name]
                if runs.count(layout.layer_of(shard)) > 1 and not layout.experts:
                    self._codes[name, shard] = coded
                arrays = arrays_of(coded)
                if bias is not None:
                    arrays["bias"] = np.pad(bias, (0, padded(len(bias), LANES) - len(bias)))
                made.append((name, shard, arrays, (self.output_errors[name, shard],)))
            else:
                arrays, _ = pack_linear(self._tensors, self._stored[name], shard, self._quantization)
                made.append((name, shard, arrays, ()))
                outputs = inputs @ self._source.weight(name, shard).T
            return outputs if bias is None else outputs + bias

        return linear

    def _quantized(self, name: str, shard: int, inputs: Floats, residual: Floats | None) -> Floats:
        """Apply a linear that an earlier loop has quantized."""
        coded = self._codes.get((name, shard))
        if coded is None:
            return self._source.linear(name, shard, inputs, residual)
        bias, N = self._source.bias(name, shard), sum(self._stored[name].rows)
        outputs = inputs @ coded.values()[: inputs.shape[1], :N]
        return outputs if bias is None else outputs + bias

    def _coded(
        self, name: str, shard: int, inputs: Floats, residual: Floats | None, true: dict[str, TrueLinear]
    ) -> tuple[Coded, Floats]:
        """Return a linear's codes, and the outputs of its own weights on some of the inputs.

        Each array may be as large as the layer: it is freed once it is not needed.
        """
        weight = self._source.weight(name, shard)
        N, K = weight.shape
        wanted = some(inputs) @ weight.T
        moments = self._moments(name, inputs)
        target = transposed(weight, len(moments))
        del weight
        if name in true:
            target[:K, :N] += correction(target[:K, :N], moments, inputs, residual, true.pop(name))
        prepared = self._prepared(moments)
        del moments
        return self._code(target, prepared), wanted

    def _moments(self, name: str, inputs: Floats) -> Floats:
        """Return the second moments of a linear's inputs, over its padded columns; refuse some that are not finite."""
        moments = second_moments(inputs, padded(self._stored[name].columns, self._quantization.column_multiple))
        if not np.isfinite(moments).all():
            raise ConversionError(
                f"the inputs of {name} are not finite on the calibration texts: download the checkpoint again, or use"
                " the method plain"
            )
        return moments

    def _prepared(self, moments: Floats) -> Feedback | Floats:
        """Return the feedback of errors, or the importance of each column."""
        return self._coder.feedback(moments) if self._feedback else importance_of(moments)

    def _code(self, weights: Floats, prepared: Feedback | Floats) -> Coded:
        if isinstance(prepared, Feedback):
            return self._coder.code_with_feedback(weights, prepared)
        return self._coder.code(weights, prepared)

    def _table(self, linear: LinearLayout, inputs: Floats | None) -> dict[str, Array]:
        """Return the arrays of an embedding or output matrix; `inputs` is None where rows are only looked up."""
        if self._quantization.dtype_of(linear.name) != "int4":
            return pack_linear(self._tensors, linear, 0, self._quantization)[0]
        K = padded(linear.columns, self._quantization.column_multiple)
        even = np.ones(K, np.float32)
        prepared = even if inputs is None else self._prepared(self._moments(linear.name, inputs))
        slabs = self._source.slabs(linear)
        parts = [arrays_of(self._code(transposed(rows, K), prepared)) for rows in slabs]
        joined = {kind: np.concatenate([part[kind] for part in parts]) for kind in parts[0] if kind != "table"}
        return {**joined, "table": parts[0]["table"]}


def second_moments(inputs: Floats, columns: int) -> Floats:
    """Return the mean of ``x x'`` over the tokens, padded with zeros to [columns, columns]."""
    moments = np.zeros((columns, columns), np.float32)
    K = inputs.shape[1]
    np.matmul(inputs.T, inputs, out=moments[:K, :K])
    moments /= np.float32(len(inputs))
    return moments


def _follows_from_inputs(residual: Floats | None, K: int, N: int) -> bool:
    """Return whether a correction follows from the inputs alone: where they are fewer than the outputs."""
    return residual is None and N > K


def correction(
    weights: Floats, moments: Floats, inputs: Floats, residual: Floats | None, true: TrueLinear
) -> NDArray[np.float32]:
    """Return the change of weights [K, N] that brings their outputs on `inputs` nearest to the wanted ones.

    Wanted are the true outputs, plus the error of the residual stream so far. A ridge (`CORRECTION_SHRINKAGE`) bounds
    the result of the least squares: the texts give the moments between columns only roughly.
    """
    if _follows_from_inputs(residual, *weights.shape):
        return np.asarray(fitted(moments, inputs, true.inputs - inputs) @ weights, np.float32)
    assert true.outputs is not None
    wanted = true.outputs
    if residual is not None and true.residual is not None:
        wanted = wanted + (true.residual - residual)
    return fitted(moments, inputs, wanted, weights)


def fitted(moments: Floats, inputs: Floats, wanted: Floats, found: Floats | None = None) -> Floats:
    """Return the matrix [K, M] that takes inputs [T, K] nearest to `wanted` [T, M]: least squares with a ridge.

    With `found` [K, M], its difference to that.
    """
    tokens, K = inputs.shape
    squares = np.diag(moments)[:K]
    added = CORRECTION_SHRINKAGE * (squares + np.diag(moments).mean()) + np.float32(1e-12)
    if tokens < K:
        # (D + X'X/T)**-1 X' = D**-1 X' T (T + X D**-1 X')**-1: a system of T equations instead of K.
        matrix: Floats = np.matmul(inputs / added, inputs.T)
        matrix[np.diag_indices_from(matrix)] += np.float32(tokens)
        lacking = wanted if found is None else wanted - inputs @ found
        result: Floats = np.matmul(inputs.T, solve(matrix, lacking))
        result /= added[:, None]
        return result
    matrix = moments[:K, :K].copy()
    means: Floats = np.matmul(inputs.T, wanted)
    means /= np.float32(tokens)
    if found is not None:
        # The moments replace a product over all tokens.
        means -= matrix @ found
    matrix[np.diag_indices_from(matrix)] += added
    return solve(matrix, means)


def importance_of(moments: Floats) -> Floats:
    """Return each column's mean square, plus a hundredth of their mean for columns that the texts hardly use."""
    squares = np.diag(moments)
    return np.asarray(squares + 0.01 * squares.mean() + 1e-12, np.float32)


def transposed(weight: Floats, columns: int) -> Floats:
    """Return [N, K] as [columns, N padded to whole lanes], zeros in the padding."""
    N, K = weight.shape
    result = np.zeros((columns, padded(N, LANES)), np.float32)
    result[:K, :N] = weight.T
    return result


def some(of_tokens: Floats) -> Floats:
    """Return the rows of up to `ERROR_TOKENS` tokens, spread evenly."""
    return of_tokens[:: -(-len(of_tokens) // ERROR_TOKENS)]


def output_error(found: Floats, wanted: Floats) -> float:
    """Return the root-mean-square error of some outputs, relative to the wanted ones."""
    size = np.linalg.norm(wanted)
    return float(np.linalg.norm(found - wanted) / size) if size > 0 else 0.0
