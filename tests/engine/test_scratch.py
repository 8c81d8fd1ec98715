"""Working memory is as wide as each stage needs it, for odd sizes, too."""

import families
import pytest

from tinychat.engine.counting import count_step
from tinychat.engine.scratch import allocate_scratch
from tinychat.kernels.sizes import LANES
from tinychat.models.architectures import parse_config
from tinychat.models.layout import Quantization

# What heads or routers read is wider than the model.
ODD = {
    "a router's vector": ("zaya", {"router_hidden_size": 2048}),
    "two positions of one head": (
        "zaya",
        {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 256},
    ),
    "latents": ("youtu", {"kv_lora_rank": 1024}),
}


@pytest.mark.parametrize("dtype", ["int4", "f32"])
@pytest.mark.parametrize("case", ODD)
def test_rows_hold_the_widest_input(case, dtype):
    name, changes = ODD[case]
    config, quantization = parse_config(families.BY_NAME[name].config | changes, name), Quantization(dtype)
    widths = count_step(config, quantization, 16).widths
    scratch = allocate_scratch(config, quantization, 16, 2, widths)
    inputs = widths.x, widths.experts.x, widths.experts.routing.x, widths.latents.x, widths.states.inputs.x
    assert max(each.columns for each in inputs) > 208, "the case is of no use"
    assert scratch.rows.shape[1] >= max(each.columns for each in inputs) + LANES
