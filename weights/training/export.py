"""Write the trained model as an ordinary Hugging Face checkpoint."""

import json
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, bfloat16

from .network import CONFIG
from .vocabulary import CHAT_TEMPLATE, END


def write_checkpoint(folder: Path, weights: Mapping[str, Tensor], tokenizer: Tokenizer) -> None:
    """Write config, weights in bfloat16, tokenizer and generation config into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    end = tokenizer.token_to_id(END)
    config = CONFIG | {"vocab_size": tokenizer.get_vocab_size(), "bos_token_id": None, "eos_token_id": end}
    _write_json(folder / "config.json", config)
    # It never runs into loops: no prompt of scripts/measure_loops.py makes it.
    generation = {"eos_token_id": end, "do_sample": True, "temperature": 0.8, "repetition_penalty": 1.0}
    _write_json(folder / "generation_config.json", generation)
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END,
            "model_max_length": CONFIG["max_position_embeddings"],
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    tensors = {f"model.{name}": tensor.to(bfloat16).contiguous() for name, tensor in sorted(weights.items())}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _write_json(file: Path, content: Mapping[str, object]) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
