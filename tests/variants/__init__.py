"""The table of variants: one checkpoint of every supported family and variant, by subject.

Each has the family's own ``config.json`` keys (as transformers 4 writes them), the type the weights are stored in, and
how the files are cut. The sizes are awkward on purpose: an intermediate size and a vocabulary that are multiples of
nothing, and a head_dim that is not a multiple of 16.
"""

from variants import block_mixtures, experts, latent, layer_norm, llama, remote, rms_norm

VARIANTS = [
    *llama.VARIANTS,
    *rms_norm.VARIANTS,
    *layer_norm.VARIANTS,
    *remote.VARIANTS,
    *experts.VARIANTS,
    *latent.VARIANTS,
    *block_mixtures.VARIANTS,
]
NEWER = [variant for variant in VARIANTS if variant.config["model_type"] not in llama.LISTED]
BY_NAME = {variant.name: variant for variant in VARIANTS}
