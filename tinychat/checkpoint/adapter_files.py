"""The files of an adapter, and their names beside a checkpoint that is merged with it: see `checkpoint.adapter`."""

from pathlib import Path

from tinychat.errors import CheckpointError

ADAPTER_CONFIG = "adapter_config.json"
# Of PEFT, and of mlx-lm.
ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin", "adapters.safetensors")
EXPECTED = f"{ADAPTER_CONFIG} and {' or '.join(ADAPTER_WEIGHTS)}"
# No published folder has files of these names.
MERGED_CONFIG, MERGED_WEIGHTS = "merged-adapter.json", "merged-adapter"
ENDINGS = (".safetensors", ".bin")


def adapter_files(folder: Path) -> dict[str, Path]:
    """Return the files of an adapter by their names beside a checkpoint; CheckpointError where it has none."""
    weights = next((path for name in ADAPTER_WEIGHTS if (path := folder / name).is_file()), None)
    if weights is None or not (folder / ADAPTER_CONFIG).is_file():
        raise CheckpointError(f"{folder} is not an adapter: expected a folder with {EXPECTED}")
    return {MERGED_CONFIG: folder / ADAPTER_CONFIG, f"{MERGED_WEIGHTS}{weights.suffix}": weights}


def use_of(adapter: Path | str) -> str:
    """Return the error of an adapter that is given as a model: how it is used."""
    use = f"tinychat convert BASE DST --adapter {adapter}"
    return f"{adapter} is an adapter, which changes another model: convert that with it: {use}"
