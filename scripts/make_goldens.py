"""Write tests/goldens: what transformers computes for every variant of tests/families.py.

Run it after a change of the variants, where torch and transformers are installed:
``.venv/bin/python scripts/make_goldens.py``, with the names of variants for those alone. Weights are not stored:
readers draw them from the seed again, and the fingerprint tells whether they are the same.
"""

import sys
from pathlib import Path

import numpy as np

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO / "tests"))

import families  # noqa: E402
import transformers_models  # noqa: E402


def main():
    folder = REPO / "tests" / "goldens"
    folder.mkdir(exist_ok=True)
    names = sys.argv[1:] or [*families.BY_NAME]
    if unknown := [name for name in names if name not in families.BY_NAME]:
        sys.exit(f"error: there is no variant {unknown[0]}: tests/variants has them")
    for variant in map(families.BY_NAME.__getitem__, names):
        model = transformers_models.build(variant)
        ids = families.make_ids(variant)
        greedy = transformers_models.greedy(model, ids[: families.SHORT], families.NEW_TOKENS)
        np.savez_compressed(
            folder / f"{variant.name}.npz",
            fingerprint=families.fingerprint(variant, families.make_weights(variant)),
            short=transformers_models.logits(model, ids[: families.SHORT])[families.SHORT_ROWS],
            long=transformers_models.logits(model, ids)[families.LONG_ROWS],
            greedy=np.array(greedy, np.int32),
        )


if __name__ == "__main__":
    main()
