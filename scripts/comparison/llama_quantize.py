"""Quantize a GGUF file by llama.cpp itself: ``python -m comparison.llama_quantize SRC DST --threads N``."""

import argparse
import ctypes
import sys

from comparison import llama_library

# By llama.cpp's numbers of kinds of files (include/llama.h).
FILE_TYPES = {
    "Q4_0": 2,
    "Q8_0": 7,
    "Q2_K": 10,
    "Q3_K_M": 12,
    "Q4_K_M": 15,
    "IQ3_XXS": 23,
    "IQ3_S": 26,
    "IQ4_NL": 25,
    "IQ4_XS": 30,
    "TQ1_0": 36,
    "TQ2_0": 37,
    "Q1_0": 40,
    "Q2_0": 41,
    "MXFP4": 38,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Quantize a GGUF file.")
    parser.add_argument("src")
    parser.add_argument("dst")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--mix", choices=["pure", "default"], required=True)
    parser.add_argument("--type", choices=[*FILE_TYPES], default="Q4_0")
    arguments = parser.parse_args()
    llama = llama_library.load()
    llama.llama_backend_init()
    settings = llama.llama_model_quantize_default_params()
    settings.nthread = arguments.threads
    settings.ftype = FILE_TYPES[arguments.type]
    settings.pure = arguments.mix == "pure"
    if llama.llama_model_quantize(arguments.src.encode(), arguments.dst.encode(), ctypes.byref(settings)):
        sys.exit(f"error: llama.cpp cannot quantize {arguments.src}")


if __name__ == "__main__":
    main()
