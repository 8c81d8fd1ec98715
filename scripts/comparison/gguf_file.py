"""Write a Hugging Face checkpoint as a GGUF file of the same numbers, unquantized, as llama.cpp's converter would.

python -m comparison.gguf_file CHECKPOINT OUT.gguf [--row-multiple COLUMNS]

With a row multiple, rows of matrices are lengthened with zeros: no model to run, but one whose weights llama.cpp's
quantizer takes in blocks of 256.
"""

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from comparison import gguf_qwen3_5
from tinychat.checkpoint.checkpoint import Checkpoint, open_checkpoint
from tinychat.checkpoint.gguf_families import FAMILIES
from tinychat.checkpoint.gguf_tensors import tensor_names
from tinychat.errors import TinychatError, UnsupportedModelError
from tinychat.models.config import ModelConfig
from tinychat.models.rope import inverse_frequencies

ARCHITECTURE = "llama"
STORED_AS = {
    "float32": gguf.GGMLQuantizationType.F32,
    "float16": gguf.GGMLQuantizationType.F16,
    "bfloat16": gguf.GGMLQuantizationType.BF16,
}


def interleave_heads(rows: NDArray[np.generic], heads: int) -> NDArray[np.generic]:
    """Reorder rows of a query or key projection [N, K] so that channels i and i + d/2 of each head become neighbours.

    GGUF rotates neighbours, Hugging Face's layout rotates halves.
    """
    halves = rows.reshape(heads, 2, -1, rows.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def rope_factors(config: ModelConfig) -> NDArray[np.float32]:
    """Return what llama.cpp divides each rotary frequency by, float32 [head_dim / 2]."""
    pairs = np.arange(0, config.head_dim, 2) / config.head_dim
    return (config.rope_theta**-pairs / inverse_frequencies(config)).astype(np.float32)


@dataclass(frozen=True)
class Tensor:
    """A tensor of the GGUF file: the checkpoint's values, and in how many heads their rows are to be reordered."""

    name: str
    values: NDArray[np.generic]
    heads: int | None = None
    row_multiple: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape as it is written."""
        if self.values.ndim == 1:
            return self.values.shape
        rows, columns = self.values.shape
        return rows, -(-columns // self.row_multiple) * self.row_multiple

    def in_order(self) -> NDArray[np.generic]:
        """Return the values as they are written."""
        values = self.values if self.heads is None else interleave_heads(self.values, self.heads)
        if values.shape == self.shape:
            return values
        return np.pad(values, ((0, 0), (0, self.shape[1] - values.shape[1])))


def tensors_of(checkpoint: Checkpoint, row_multiple: int = 1) -> Iterator[Tensor]:
    """Yield all tensors; the big ones are views of mapped files, read when they are written."""
    config = checkpoint.config
    if config.delta_net is not None:
        for name, values in gguf_qwen3_5.tensors_of(checkpoint):
            yield Tensor(name, values, row_multiple=row_multiple)
        return
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    if config.rope_scaling is not None:
        yield Tensor("rope_freqs.weight", rope_factors(config))
    for theirs, ours in tensor_names(config, FAMILIES[ARCHITECTURE]).items():
        values = checkpoint.tensors.read(theirs)
        kind = ours.split(".")[-2]
        values = values.astype(np.float32) if values.ndim == 1 else values
        yield Tensor(ours, values, heads.get(kind), row_multiple)


def check_supported(config: ModelConfig) -> None:
    """Refuse what this writer does not know to translate.

    Raises
    ------
    UnsupportedModelError
        If the model is neither a plain Llama nor a Qwen3.5.
    """
    if config.architecture == "Qwen3_5ForCausalLM":
        gguf_qwen3_5.delta_net_of(config)
        return
    scaling = config.rope_scaling
    if config.architecture != "LlamaForCausalLM" or config.qkv_bias or config.o_bias or config.mlp_bias:
        what = f"{config.architecture} with these biases cannot be compared: take a plain Llama or a Qwen3.5"
        raise UnsupportedModelError(what)
    if scaling is not None and scaling.rope_type not in ("linear", "llama3"):
        raise UnsupportedModelError(f"rope type {scaling.rope_type!r} cannot be compared: take default or llama3")


def describe(writer: gguf.GGUFWriter, config: ModelConfig) -> None:
    """Add the architecture's numbers."""
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.rotary_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    if config.delta_net is not None:
        gguf_qwen3_5.describe(writer, config)


def add_vocabulary(writer: gguf.GGUFWriter, checkpoint: Checkpoint) -> None:
    """Add the pieces of ``tokenizer.model``; without that file, say that there is no vocabulary."""
    file = checkpoint.path / "tokenizer.model"
    if not file.is_file():
        writer.add_tokenizer_model("no_vocab")
        return
    from sentencepiece import SentencePieceProcessor

    pieces = SentencePieceProcessor(model_file=str(file))
    count, vocab_size = pieces.get_piece_size(), checkpoint.config.vocab_size
    unused = [f"[PAD{i}]" for i in range(count, vocab_size)]
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([pieces.id_to_piece(i) for i in range(count)] + unused)
    writer.add_token_scores([pieces.get_score(i) for i in range(count)] + [0.0] * len(unused))
    writer.add_token_types([token_type(pieces, i) for i in range(count)] + [gguf.TokenType.UNUSED] * len(unused))
    writer.add_bos_token_id(pieces.bos_id())
    writer.add_eos_token_id(pieces.eos_id())
    writer.add_unk_token_id(pieces.unk_id())


def token_type(pieces: object, token_id: int) -> gguf.TokenType:
    """Return GGUF's class of a SentencePiece piece."""
    for method, kind in (
        ("is_unknown", gguf.TokenType.UNKNOWN),
        ("is_control", gguf.TokenType.CONTROL),
        ("is_unused", gguf.TokenType.UNUSED),
        ("is_byte", gguf.TokenType.BYTE),
    ):
        if getattr(pieces, method)(token_id):
            return kind
    return gguf.TokenType.NORMAL


def write_gguf(src: Path, dst: Path, row_multiple: int = 1) -> None:
    """Write the checkpoint folder `src` as the file `dst`, holding one tensor in memory at a time.

    Raises
    ------
    TinychatError
        If the checkpoint is damaged, or is neither a plain Llama nor a Qwen3.5.
    """
    checkpoint = open_checkpoint(src)
    check_supported(checkpoint.config)
    architecture = ARCHITECTURE if checkpoint.config.delta_net is None else gguf_qwen3_5.ARCHITECTURE
    writer = gguf.GGUFWriter(dst, architecture)
    describe(writer, checkpoint.config)
    add_vocabulary(writer, checkpoint)
    for tensor in tensors_of(checkpoint, row_multiple):
        dtype = tensor.values.dtype
        size = math.prod(tensor.shape) * dtype.itemsize
        writer.add_tensor_info(tensor.name, tensor.shape, dtype, size, raw_dtype=STORED_AS[dtype.name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in tensors_of(checkpoint, row_multiple):
        writer.write_tensor_data(tensor.in_order().view(np.uint8))
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a checkpoint as an unquantized GGUF file.")
    parser.add_argument("checkpoint", metavar="CHECKPOINT", type=Path)
    parser.add_argument("out", metavar="OUT", type=Path)
    parser.add_argument("--row-multiple", type=int, default=1, metavar="COLUMNS")
    arguments = parser.parse_args()
    try:
        write_gguf(arguments.checkpoint, arguments.out, arguments.row_multiple)
    except (TinychatError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
