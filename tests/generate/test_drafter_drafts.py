"""Drafts by a drafter: its arithmetic, replies that stay the same, and what is refused."""

import drafters
import engines
import families
import numpy as np
import pytest
import reference
from generate.test_driver import draw_prompts

from tinychat.conversion.convert import convert
from tinychat.engine.sequence import Sequence, new_sequence
from tinychat.models.drafter_folder import open_drafter

CONTEXT = 400
ROUNDS = 4


@pytest.fixture(scope="module")
def made(tmp_path_factory, folders):
    """Return model folder, drafter's folder and weights, by variant and whether the output matrix is in clusters."""
    folder, found = tmp_path_factory.mktemp("drafters"), {}
    for name in drafters.VARIANTS:
        for ordered in (False, True):
            raw = drafters.config_of(name, ordered)
            weights = drafters.draw(raw)
            checkpoint = drafters.write_checkpoint(folder / f"{name}-{ordered}-checkpoint", raw, weights)
            found[name, ordered] = (
                folders(name, "f32"),
                convert(checkpoint, folder / f"{name}-{ordered}", "f32"),
                weights,
            )
    return found


def drafter_of(engine, folder):
    own = engine.drafter(open_drafter(folder, engine.config, "model"))
    own.compile()
    return own


def drafted(own, cache, last, state, rounds=ROUNDS):
    """Return the ids of a draft, and logits and state of each round."""
    found, ids = [], []
    for _ in range(rounds):
        chunk = Sequence(own, cache).chunk([last], cache.length + 1)._replace(hidden=state[None])
        logits, state = own.run([chunk])[0][0], own.last_states(0, 1)[0]
        found.append((logits, state))
        last = int(np.argmax(logits))
        ids.append(last)
    return ids, found


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("name", drafters.VARIANTS)
def test_logits_and_states_are_those_of_the_formulas(made, name, ordered):
    folder, drafter, weights = made[name, ordered]
    # Keys and values as they are computed.
    engine = engines.open_engine(folder, threads=2, kv="f32")
    own, config = drafter_of(engine, drafter), engine.config
    larger = families.make_weights(families.BY_NAME[name])
    embedding = config.embedding_multiplier * larger["model.embed_tokens.weight"].astype(np.float64)
    (ids,) = draw_prompts(engine, [200])
    # Alone, within the window and behind it, at the beginning of a block, and in the middle of one.
    for position in (1, 9, 23, 64, 129, 199):
        main, kept = new_sequence(engine, CONTEXT), {}
        main.step(ids[:position])
        state = engine.last_states(position - 1, position)[0]
        expected = reference.decoder_states(config, larger, ids[:position], kept=kept)[-1]
        assert np.abs(state - expected).max() < 1e-4 * np.abs(expected).max()
        narrow = config.cache_shapes[0][0]
        keys = kept[config.cache_layers[narrow - 1]], kept[config.cache_layers[-1]]
        chosen, rounds = drafted(own, main.cache, ids[position], state)
        for last, (logits, state) in zip([ids[position], *chosen], rounds):
            wanted, following = reference.drafted(own.config, weights, embedding[last], expected, keys, position)
            assert np.abs(logits - wanted).max() < 1e-2 * np.abs(wanted).max()
            assert np.abs(state - following).max() < 1e-2 * np.abs(following).max()
            # From where the engine is: differences grow from round to round.
            expected = state.astype(np.float64)
        assert main.ids == ids[:position]


@pytest.mark.live
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("name", drafters.VARIANTS)
def test_logits_and_states_are_those_of_transformers(made, name, ordered, tmp_path):
    torch = pytest.importorskip("torch")
    import transformers
    import transformers_models

    folder, drafter, weights = made[name, ordered]
    checkpoint = drafters.write_checkpoint(tmp_path / "checkpoint", drafters.config_of(name, ordered), weights)
    theirs, report = transformers.Gemma4AssistantForCausalLM.from_pretrained(
        checkpoint, dtype=torch.float32, output_loading_info=True
    )
    assert not any(report.values()), report
    larger = transformers_models.build(families.BY_NAME[name])
    engine = engines.open_engine(folder, threads=2, kv="f32")
    own = drafter_of(engine, drafter)
    (ids,) = draw_prompts(engine, [200])
    for position in (9, 30, 64, 199):
        main = new_sequence(engine, CONTEXT)
        main.step(ids[:position])
        with torch.no_grad():
            run = larger(
                torch.tensor([ids[:position]]), output_hidden_states=True, return_shared_kv_states=True, use_cache=False
            )
        hidden, last = run.hidden_states[-1][:, -1:], ids[position]
        state = hidden[0, 0].numpy()
        for logits, following in drafted(own, main.cache, last, state)[1]:
            with torch.no_grad():
                embedded = larger.get_input_embeddings()(torch.tensor([[last]]))
                out = theirs(
                    inputs_embeds=torch.cat([embedded, hidden], dim=-1),
                    position_ids=torch.tensor([[position]]),
                    shared_kv_states=run.shared_kv_states,
                )
            wanted, expected = out.logits[0, 0].numpy(), out.last_hidden_state[0, 0].numpy()
            assert np.abs(logits - wanted).max() < 1e-2 * np.abs(wanted).max()
            assert np.abs(following - expected).max() < 1e-2 * np.abs(expected).max()
            last, hidden = int(np.argmax(logits)), torch.from_numpy(following)[None, None]
