"""Messages of several lines, fenced by three quotation marks."""

FENCE = '"""'


def is_open(text: str) -> bool:
    """Return whether `text` begins with a fence that is not closed yet."""
    return text.startswith(FENCE) and not (len(text) >= 2 * len(FENCE) and text.rstrip().endswith(FENCE))


def unfence(text: str) -> str:
    """Return what stands between the fences, or `text` itself where there are none."""
    if not text.startswith(FENCE):
        return text
    return text.removeprefix(FENCE).rstrip().removesuffix(FENCE).strip("\n")
