"""OpenVINO as an engine to be measured: ``python -m comparison.openvino_engine FOLDER --threads N``."""

import argparse
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import openvino
from openvino import opset13

from comparison.serving import run, token_ids


def keep_last_logits(model: openvino.Model) -> None:
    """Let the output layer see the last position only, as OpenVINO's own text pipeline does."""
    projection = model.output("logits").get_node().input_value(0).get_node()
    while projection.get_type_name() != "MatMul":
        projection = projection.input_value(0).get_node()
    last = opset13.gather(projection.input_value(0), np.array([-1]), np.array(1))
    projection.input(0).replace_source_output(last.output(0))
    model.validate_nodes_and_infer_types()


class OpenVinoEngine:
    """A folder that optimum has written."""

    def __init__(self, folder: str, threads: int) -> None:
        core = openvino.Core()
        model = core.read_model(Path(folder) / "openvino_model.xml")
        keep_last_logits(model)
        settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads}
        self.request = core.compile_model(model, "CPU", settings).create_infer_request()
        self.vocab_size = model.output("logits").get_partial_shape()[-1].get_length()
        self.version = f"openvino {version('openvino')}"
        self.length = 0

    def reset(self) -> None:
        """Forget everything; the cache of a model in this form cannot be rewound."""
        self.request.reset_state()
        self.length = 0

    def append(self, ids: list[int]) -> None:
        """Run token ids after those before."""
        end = self.length + len(ids)
        self.request.infer(
            {
                "input_ids": np.array([ids], np.int64),
                "attention_mask": np.ones((1, end), np.int64),
                "position_ids": np.arange(self.length, end, dtype=np.int64)[None],
                "beam_idx": np.zeros(1, np.int32),
            }
        )
        self.length = end

    def prefill(self, tokens: int) -> float:
        """See `serving.Engine`."""
        self.reset()
        ids = token_ids(tokens, self.vocab_size)
        start = time.perf_counter()
        self.append(ids)
        return time.perf_counter() - start

    def decode(self, depth: int, tokens: int) -> float:
        """See `serving.Engine`."""
        self.reset()
        ids = token_ids(depth + tokens, self.vocab_size)
        if depth:
            self.append(ids[:depth])
        start = time.perf_counter()
        for token in ids[depth:]:
            self.append([token])
        return time.perf_counter() - start

    def logits(self, tokens: int, context_size: int) -> list[float]:
        """See `serving.Engine`; the cache grows, whatever the context's size."""
        self.reset()
        self.append(token_ids(tokens, self.vocab_size))
        return list(self.request.get_tensor("logits").data.ravel()[-self.vocab_size :].tolist())


if __name__ == "__main__":
    run(
        lambda arguments: OpenVinoEngine(arguments.model, arguments.threads),
        argparse.ArgumentParser(description="Serve OpenVINO to the comparison."),
    )
