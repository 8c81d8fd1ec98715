"""Model folders of random weights in the shape of a well-known model: for measuring speed without any checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tinychat.models.architectures import linears, parse_config
from tinychat.models.config import ModelConfig
from tinychat.models.folder import DESCRIPTION, WEIGHTS, description_of, header_of
from tinychat.models.head_folder import HEAD, head_layout, head_specs
from tinychat.models.layout import UNQUANTIZED, Quantization, TensorSpec, tensor_specs
from tinychat.models.passthrough import NATIVE, Form, PassthroughLinear
from tinychat.models.tensors import Linear

_PIECE_BYTES = 16 << 20
# Codes are drawn from 1..15, zero being 8: no bias, and this standard deviation.
_CODE_DEVIATION = np.sqrt((15**2 - 1) / 12)
# The same of kept codes by their size: -1 and 1, -1 to 1, and of bytes of two such codes.
_KEPT_DEVIATIONS = {1: 1.0, 2: np.sqrt(2 / 3), 4: _CODE_DEVIATION, 8: 17 * _CODE_DEVIATION}
_TABLE = np.arange(-8, 8, dtype=np.int8)
_SCALE = 100
# The exponent of 1 where scales are powers of two.
_EXPONENT = 127


def write_random_model(shape: Mapping[str, object], folder: Path, draft_head: bool = False) -> Path:
    """Write a model folder of random int4 weights, groups of 32, and a tokenizer of as many tokens.

    shape : as in a config.json, of sizes that are multiples of 32; its "quantization", if it has one, stands in the
    place of int4: `bits` and `group_size` of kept codes, `mode` "mxfp4" if they are that, and of some linears their
    own, by name; folder : exists and is empty; draft_head : whether to write one, of a family that has it.
    """
    config = parse_config(shape, "random shape")
    quantization = _quantization_of(config, shape.get("quantization"))
    (folder / "config.json").write_text(json.dumps(shape))
    description = {**description_of(quantization), "source": "random"}
    (folder / DESCRIPTION).write_text(json.dumps(description))
    _write_tokenizer(folder, config.vocab_size)
    _write_weights(folder / WEIGHTS, config, tensor_specs(config, quantization))
    if draft_head and (layout := head_layout(config, quantization)):
        _write_weights(folder / HEAD, layout[0], head_specs(*layout))
    return folder


def _quantization_of(config: ModelConfig, settings: Any) -> Quantization:
    """Return the quantization that a shape asks for."""
    if settings is None:
        return Quantization("int4", 32)

    def codes_of(linear: Linear) -> PassthroughLinear:
        own = settings.get(linear.name, settings)
        bits, group, is_mxfp4 = own["bits"], own["group_size"], own.get("mode") == "mxfp4"
        form = Form(bits, "E8M0" if is_mxfp4 else "F16", group, table=is_mxfp4)
        return PassthroughLinear((form,), ((bits,) * len(linear.rows),) * linear.shards)

    found = [linear for linear in linears(config) if linear.name not in UNQUANTIZED]
    return Quantization(NATIVE, passthrough=tuple((linear.name, codes_of(linear)) for linear in found))


def _write_weights(file: Path, config: ModelConfig, specs: Mapping[str, TensorSpec]) -> None:
    columns = {linear.name: linear.columns for linear in linears(config)}
    # Each output is then of about the size of the inputs.
    row_scales = {f"{name}.row_scales": 1 / (_SCALE * _CODE_DEVIATION * np.sqrt(K)) for name, K in columns.items()}
    deviations = {f".factors{bits}": deviation for bits, deviation in _KEPT_DEVIATIONS.items()}
    for name, K in columns.items():
        row_scales |= {f"{name}{end}": 1 / (deviation * np.sqrt(K)) for end, deviation in deviations.items()}
    random = np.random.default_rng(1)
    codes = random.integers(1, 16, _PIECE_BYTES, np.uint8) | random.integers(1, 16, _PIECE_BYTES, np.uint8) << 4
    ternary = np.bitwise_or.reduce([random.integers(0, 3, _PIECE_BYTES, np.uint8) << shift for shift in (0, 2, 4, 6)])
    with file.open("wb") as stream:
        stream.write(header_of(specs)[0])
        for name, spec in specs.items():
            if spec.dtype == "U8" and name.endswith(".scales4"):
                stream.write(np.full(spec.shape, _EXPONENT, np.uint8).tobytes())
            elif spec.dtype == "U8":
                stream.writelines(_repeated(ternary if name.endswith("packed2") else codes, spec.bytes))
            elif spec.dtype == "F16":
                stream.write(np.ones(spec.shape, np.float16).tobytes())
            elif name.endswith((".table", ".table4")):
                stream.write(np.broadcast_to(_TABLE, spec.shape).tobytes())
            elif spec.dtype == "I8":
                stream.write(np.full(spec.shape, _SCALE, np.int8).tobytes())
            elif (linear := name.removesuffix(".values")) in UNQUANTIZED:
                # Of tokens that differ, so do the experts, or what a state forgets.
                values = random.standard_normal(spec.shape, np.float32) / np.float32(np.sqrt(columns[linear]))
                stream.write(values.tobytes())
            elif name.endswith((".bias", "_shift")):
                stream.write(np.zeros(spec.shape, np.float32).tobytes())
            else:
                stream.write(np.full(spec.shape, row_scales.get(name, 1), np.float32).tobytes())


def _repeated(codes: npt.NDArray[np.uint8], size: int) -> Iterator[memoryview]:
    """Yield `size` bytes of codes, repeated: kernels take the same time for any codes."""
    for start in range(0, size, codes.nbytes):
        yield codes[: size - start].data


def _write_tokenizer(folder: Path, vocab_size: int) -> None:
    """Write a byte-level tokenizer: three special tokens, the bytes, and words that occur in no text."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    specials = ["<unk>", "<s>", "</s>"]
    tokens = specials + sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens += [f"word{i}" for i in range(len(tokens), vocab_size)]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in specials])
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
