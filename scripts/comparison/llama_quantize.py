"""Quantize a GGUF file to Q4_0 by llama.cpp itself: ``python -m comparison.llama_quantize SRC DST --threads N``."""

import argparse
import ctypes
import sys

from comparison import llama_library


def main() -> None:
    parser = argparse.ArgumentParser(description="Quantize a GGUF file to Q4_0.")
    parser.add_argument("src")
    parser.add_argument("dst")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--mix", choices=["pure", "default"], required=True)
    arguments = parser.parse_args()
    llama = llama_library.load()
    llama.llama_backend_init()
    settings = llama.llama_model_quantize_default_params()
    settings.nthread = arguments.threads
    settings.ftype = llama.LLAMA_FTYPE_MOSTLY_Q4_0
    settings.pure = arguments.mix == "pure"
    if llama.llama_model_quantize(arguments.src.encode(), arguments.dst.encode(), ctypes.byref(settings)):
        sys.exit(f"error: llama.cpp cannot quantize {arguments.src}")


if __name__ == "__main__":
    main()
