"""The compiled operations of the decoder, one per file."""

from tinychat.kernels.setup import prepare

prepare()
