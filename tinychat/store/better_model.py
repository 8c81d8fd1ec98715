"""The model of the catalog that would answer best on this machine, offered once to those who have none better."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from time import time

from tinychat.machine import available_memory_bytes, memory_bytes
from tinychat.models.architectures import weight_count
from tinychat.store.catalog import CATALOG, CatalogEntry
from tinychat.store.default_model import DEFAULT_MODEL, Offer, read_offer, write_offer
from tinychat.store.estimates import disk_bytes, memory_bandwidth, memory_bytes_needed, tokens_per_second
from tinychat.store.names import catalogued

# A model of this size is downloaded and converted in minutes, and writes faster than most people read.
MOST_BYTES, LEAST_RATE = 500_000_000, 10.0
# Models of other licences need an account that has accepted their terms on the hub.
_OPEN_LICENCES = ("Apache-2.0", "MIT")
SECONDS_FOR_THE_HUB = 3.0
_SECONDS_BETWEEN_CHECKS = 24 * 3600


@dataclass(frozen=True)
class Better:
    """A model to offer: `rate` in tokens a second is estimated for this machine, `download` is in bytes."""

    entry: CatalogEntry
    rate: float
    download: int

    def lines(self, current: str) -> list[str]:
        """Return the lines of the offer, with its costs, to replace the model `current`."""
        name, memory = self.entry.name, memory_bytes_needed(self.entry)
        return [
            f"{name} ({self.entry.licence}) would answer better than {current}, at some {self.rate:.0f} tokens"
            " a second.",
            f"It takes a download of {self.download / 1e9:.2f} GB, some minutes to convert, then"
            f" {disk_bytes(self.entry) / 1e9:.2f} GB on the disk and up to {memory / 1e9:.1f} GB of memory.",
        ]


def best_entry(bandwidth: Callable[[int], float], free: int | None) -> CatalogEntry | None:
    """Return the largest model of the catalog that this machine runs well; None if the default one is as large.

    `bandwidth` is this machine's, as `memory_bandwidth` measures it, `free` its free memory in bytes, None where that
    is not known.
    """
    fitting = [
        entry
        for entry in CATALOG.values()
        if entry.licence in _OPEN_LICENCES
        and entry.writes
        and not entry.vision  # it is larger, not better at texts
        # Their checkpoints also hold what reads pictures or listens, which would be downloaded in vain.
        and entry.config.delta_net is None
        and entry.config.varied is None
        and disk_bytes(entry) <= MOST_BYTES
        and (free is None or memory_bytes_needed(entry) <= free)
        and tokens_per_second(entry, bandwidth) >= LEAST_RATE
    ]
    best = max([CATALOG[DEFAULT_MODEL], *fitting], key=lambda entry: weight_count(entry.config))
    return None if best.name == DEFAULT_MODEL else best


def model_to_offer(environment: Mapping[str, str] = os.environ, clock: Callable[[], float] = time) -> Better | None:
    """Return the model to offer now, and note that it was; None where there is nothing, or it was offered before.

    Memory is measured and the hub is asked at most once a day, for some seconds.
    """
    offer, now = read_offer(), clock()
    is_due = offer.name is None and not 0 <= now - offer.looked_at < _SECONDS_BETWEEN_CHECKS
    if environment.get("TINYCHAT_MODEL") or not is_due or not write_offer(Offer(None, now)):
        return None
    bandwidth, free = cache(memory_bandwidth), available_memory_bytes() or memory_bytes()
    entry = best_entry(bandwidth, free)
    if entry is None or catalogued(entry.name).kind == "stored":
        return None
    # Imported here: the hub's client takes a while.
    from tinychat.store.hub import download_size

    download = download_size(entry.repository, SECONDS_FOR_THE_HUB)
    if download is None:
        return None
    write_offer(Offer(entry.name, now))
    return Better(entry, tokens_per_second(entry, bandwidth), download)
