"""From prompt ids to a stream of text: prefill, decode, sampling, stop conditions."""
