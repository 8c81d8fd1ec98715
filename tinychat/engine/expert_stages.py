"""The stages of mixtures of experts: see `engine.stages`."""

from tinychat.engine.stages import FLOAT, inner_columns
from tinychat.engine.wiring import stage
from tinychat.kernels.sizes import LANES
from tinychat.models.layout import padded


@stage("experts")
def carry_states(counter, T, scale, states):
    """Scale the vectors that are carried to a router."""
    R = counter.config.experts.router_size
    counter.note("choice of experts", T * 2 * R * FLOAT, T * R)


@stage("experts")
def choose_experts(counter, T, sizes, e):
    """Choose the experts of each token."""
    count, chosen = counter.experts
    e.logits.need(padded(count + 1, LANES) + LANES)
    counter.note("choice of experts", T * count * FLOAT, T * count * chosen)


@stage("experts")
def choose_scored(counter, T, routing, sizes, e):
    """Choose the experts of each token by probabilities and biases."""
    _, chosen = counter.experts
    count = counter.config.experts.choices
    e.logits.need(2 * padded(count, LANES) + sizes.n_group)
    counter.note("choice of experts", T * count * 4 * FLOAT, T * count * (3 + chosen))


@stage("experts")
def choose_mixed(counter, T, routing, e):
    """Choose the experts of each token by the logits near the largest."""
    count, chosen = counter.experts
    e.logits.need(padded(count, LANES) + LANES)
    counter.note("choice of experts", T * count * FLOAT, T * count * chosen * 2)


@stage("experts")
def scale_choices(counter, T, scale, e):
    """Multiply the weights of chosen experts by numbers of their own."""
    _, chosen = counter.experts
    counter.note("choice of experts", T * chosen * 3 * FLOAT, T * chosen)


@stage("experts")
def group_rows(counter, T, e):
    """Give each choice its slot."""
    _, chosen = counter.experts
    counter.note("slots of experts", T * chosen * 8)


@stage("experts")
def quantize_routed(counter, T, hidden, norm, sizes, weight, rows, e):
    """Norm the residual stream and write it for the experts that were chosen."""
    _, chosen = counter.experts
    e.x.need(counter.columns(weight))
    D = weight.columns
    counter.note("norms and quantize", (T * chosen + 1) * D * FLOAT, T * chosen * D * 3)


@stage("experts")
def quantize_routed_activated(counter, T, activation, size, weight, rows, e):
    """Write what the gates of chosen experts let through, or what an activation makes of those without gates."""
    _, chosen = counter.experts
    columns = inner_columns(activation, size)
    e.gate_up.need(padded(columns, LANES) + LANES)
    e.x.need(counter.columns(weight))
    counter.note("activation and quantize", T * chosen * columns * FLOAT, T * chosen * size * 3)


@stage("experts")
def linear_routed(counter, weight, out, buffers, e):
    """Apply the experts that were chosen; tokens are taken to choose as different ones as they can."""
    out.need(padded(weight.rows, LANES))
    count, chosen = counter.experts
    rows = counter.T * chosen
    counter.note(weight.name, counter.bytes(weight) // count * min(count, rows), rows * weight.rows * weight.columns)


@stage("clusters")
def scatter_logits(counter, T, ordering, e, logits):
    """Write the logits of the clusters that were chosen."""
    columns, (_, chosen) = counter.config.vocab_size, counter.experts
    e.gate_up.need(padded(counter.config.drafter.clusters.intermediate_size, LANES) + LANES)
    counter.note("logits of clusters", T * columns * FLOAT, T * chosen * columns // counter.experts[0])


@stage("clusters")
def spread_logits(counter, T, ids, some, logits):
    """Write the logits of some tokens, and less for all others."""
    count, columns = ids.layout.size, counter.config.vocab_size
    counter.note("logits of frequent tokens", T * (columns + 2 * count) * FLOAT, T * count)


@stage("experts")
def clear_rows(counter, T, hidden, out):
    """Write zeros to rows."""
    out.need(hidden.columns)
    counter.note("sum of experts", T * hidden.columns * FLOAT)


@stage("experts")
def add_routed(counter, T, shared, branch, hidden, e):
    """Add to the residual stream what experts give, each times its weight."""
    _, chosen = counter.experts
    e.down.need(hidden.columns)
    if shared:
        branch.need(hidden.columns)
    D = hidden.columns
    counter.note("sum of experts", (T * chosen + 2 * T) * D * FLOAT, T * chosen * D)
