"""The stages of rows that enter the residual stream, and of four streams: see `engine.stages`."""

from tinychat.engine.stages import FLOAT
from tinychat.engine.wiring import stage
from tinychat.models.altup import STREAMS

OTHERS = STREAMS - 1


@stage("embedding")
def place_rows(counter, T, replaced, images, hidden):
    """Replace embeddings by the rows of images."""
    images.need(hidden.columns)
    counter.note("images", T * hidden.columns * 2 * FLOAT)


@stage("embedding")
def add_image_rows(counter, T, replaced, images, part, hidden):
    """Add another part of the rows of images to the residual stream."""
    images.need((1 + part) * hidden.columns)
    counter.note("images", T * hidden.columns * 3 * FLOAT, T * hidden.columns)


@stage("norms")
def clip_columns(counter, T, x, w, out):
    """Write what a linear gives, brought between two bounds, into some columns."""
    counter.note("bounds", T * w.weight.rows * 2 * FLOAT, T * w.weight.rows * 2)


@stage("altup")
def route_streams(counter, T, hidden, router, sizes, out):
    """Write the factors of predictions, or of corrections."""
    D = sizes.hidden_size
    out.need(2 * STREAMS**2)
    counter.note("streams", (T + STREAMS) * D * FLOAT, T * D * (3 + STREAMS))


@stage("altup")
def predict_streams(counter, T, factors, sizes, hidden, others, before):
    """Predict all streams."""
    D = sizes.hidden_size
    before.need(hidden.columns)
    counter.note("streams", T * (2 * STREAMS + 1) * D * FLOAT, T * STREAMS**2 * D)


@stage("altup")
def add_laurel(counter, T, branch, norm, before, input_norm, sizes, hidden):
    """Add LAuReL's input and result to the residual stream."""
    branch.need(hidden.columns)
    counter.note("norms after", T * sizes.hidden_size * 4 * FLOAT, T * sizes.hidden_size * 8)


@stage("altup")
def correct_streams(counter, T, factors, scale, sizes, before, hidden, others):
    """Correct all streams."""
    D = sizes.hidden_size
    counter.note("streams", T * (2 * STREAMS + 2) * D * FLOAT, T * (STREAMS + 1) * D)


@stage("altup")
def add_to_streams(counter, T, branch, norm, sizes, others):
    """Add what a norm makes of a branch to all streams but one."""
    D = sizes.hidden_size
    counter.note("norms after", T * (1 + 2 * OTHERS) * D * FLOAT, T * D * (3 + OTHERS))


@stage("altup")
def match_streams(counter, T, hidden, sizes, others):
    """Bring the other streams to the size of the residual stream."""
    D = sizes.hidden_size
    counter.note("streams", T * 3 * OTHERS * D * FLOAT, T * 3 * OTHERS * D)


@stage("altup")
def pick_stream(counter, T, rows, others, stream, sizes, out):
    """Copy the rows of another stream whose logits are wanted."""
    counter.note("streams", T * sizes.hidden_size * 2 * FLOAT)


@stage("altup")
def pick_quarter(counter, T, rows, hidden, out):
    """Write a quarter of the rows whose logits are wanted."""
    out.need(hidden.columns)
    counter.note("streams", T * counter.config.hidden_size * 2 * FLOAT, T * counter.config.hidden_size)


@stage("altup")
def add_quarter(counter, T, rows, hidden, branch, sizes, out):
    """Add a quarter of another stream."""
    D = sizes.hidden_size
    counter.note("streams", T * 5 * D * FLOAT, T * 3 * D)
