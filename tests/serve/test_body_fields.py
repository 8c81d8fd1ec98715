"""Fields of bodies."""

import pytest
from fake_model import fake_model

from tinychat.conversation.openai import usage
from tinychat.errors import FieldError
from tinychat.generate.reply import Summary
from tinychat.generate.request import Request
from tinychat.serve import body_fields
from tinychat.settings import SEEDS
from tinychat.tools.definitions import Tool, ToolChoice

MODEL = fake_model(lambda ids: None, has_template=True)


def refused(take, *arguments):
    """Return the field that an error names."""
    with pytest.raises(FieldError) as error:
        take(*arguments)
    return error.value.field


def test_settings_by_our_names_and_by_openais():
    found = body_fields.take_request(
        {"max_completion_tokens": 5, "temperature": 0.5, "seed": 7, "stop": "x", "user": "me", "model": "any"},
        Request(temperature=0.0, top_p=0.5),
    )
    assert (found.max_tokens, found.temperature, found.seed, found.stop, found.top_p) == (5, 0.5, 7, ("x",), 0.5)


def test_fields_that_are_not_known():
    assert refused(body_fields.take_request, {"functions": []}, Request()) == "functions"
    assert refused(body_fields.take_request, {"x" * 500: 1}, Request()) == "x" * 100
    assert refused(body_fields.take_request, {"stop": ["a"] * 65}, Request()) == "stop"


def test_each_choice_has_a_seed_of_its_own():
    seeds = [one.seed for one in body_fields.choice_requests(Request(seed=SEEDS - 2), 3)]
    assert seeds == [SEEDS - 2, SEEDS - 1, 0]
    assert [one.seed for one in body_fields.choice_requests(Request(), 2)] == [None, None]


@pytest.mark.parametrize("value", [0, 33, 1.0, True, "2"])
def test_choices_are_few(value):
    assert refused(body_fields.take_choices, {"n": value}) == "n"


def test_log_probabilities():
    assert body_fields.take_logprobs({}) is None
    assert body_fields.take_logprobs({"logprobs": True}) == 0
    assert body_fields.take_logprobs({"logprobs": True, "top_logprobs": 20}) == 20
    assert refused(body_fields.take_logprobs, {"top_logprobs": 1}) == "top_logprobs"
    assert refused(body_fields.take_logprobs, {"logprobs": True, "top_logprobs": 21}) == "top_logprobs"
    assert refused(body_fields.take_logprobs, {"logprobs": 1}) == "logprobs"


def test_options_of_a_stream():
    taken = {"stream": True, "stream_options": {"include_usage": True}, "return_progress": True}
    assert body_fields.take_stream_options(taken) == (True, True, True)
    assert taken == {}
    assert body_fields.take_stream_options({}) == (False, False, False)
    assert refused(body_fields.take_stream_options, {"stream_options": 5}) == "stream_options"
    field = "stream_options.include_usage"
    assert refused(body_fields.take_stream_options, {"stream_options": {"include_usage": 1}}) == field


def test_one_grammar_at_most():
    required = ToolChoice((Tool("f"),), required=True)
    take = body_fields.take_grammar
    assert take({}, None, MODEL) is None
    assert refused(take, {"grammar": "root ::= [a]"}, "{}", MODEL) == "grammar"
    assert take({}, "{}", MODEL, required) == take({}, None, MODEL, required)
    assert refused(take, {"grammar": "root ::= [a]"}, None, MODEL, required) == "grammar"
    assert take({"grammar": ""}, None, MODEL) is None
    assert refused(take, {"grammar": 5}, None, MODEL) == "grammar"


def test_a_prompt_counts_once_and_each_choice_for_itself():
    summaries = [
        Summary(prompt, reused_tokens=reused, new_tokens=new) for prompt, reused, new in ((5, 2, 7), (5, 5, 8))
    ]
    summaries += [Summary(3, reused_tokens=1, new_tokens=1), Summary(3, new_tokens=2)]
    assert usage(summaries, 2) == {
        "prompt_tokens": 8,
        "completion_tokens": 18,
        "total_tokens": 26,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
