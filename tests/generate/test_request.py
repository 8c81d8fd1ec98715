import sys
from dataclasses import replace

import numpy as np
import pytest

from tinychat.errors import FieldError
from tinychat.generate.request import SAMPLING_FIELDS, Request, RequestFields


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("temperature", -0.1, "must be between 0 and 100, not -0.1"),
        ("temperature", float("nan"), "must be between 0 and 100, not nan"),
        ("temperature", float("inf"), "must be between 0 and 100, not inf"),
        ("temperature", 10**400, f"must be between 0 and 100, not {10**76}..."),
        ("temperature", "hot", "must be a number, not 'hot'"),
        ("temperature", True, "must be a number, not True"),
        ("temperature", None, "must be a number, not None"),
        ("top_k", -1, "must be 0 (all tokens) or more, not -1"),
        ("top_k", 1.5, "must be a whole number, not 1.5"),
        ("top_k", None, "must be a whole number, not None"),
        ("top_p", 0.0, "must be between 0.01 and 1, not 0.0"),
        ("top_p", 1.1, "must be between 0.01 and 1, not 1.1"),
        ("min_p", -0.1, "must be between 0 and 1, not -0.1"),
        ("min_p", 2.0, "must be between 0 and 1, not 2.0"),
        ("repeat_penalty", 0.0, "must be between 0.01 and 100, not 0.0"),
        ("repeat_last_n", -1, "must be 0 (no tokens) or more, not -1"),
        ("seed", -1, "must be 0 or more, not -1"),
        ("seed", False, "must be a whole number or none, not False"),
        ("max_tokens", 0, "must be 1 or more, not 0"),
        ("max_tokens", -5, "must be 1 or more, not -5"),
        ("max_tokens", "5", "must be a whole number or none, not '5'"),
        ("seed", 1 << 64, "must have at most 64 bits"),
        ("logprobs", -1, "must be between 0 and 1000, not -1"),
        ("logprobs", 1001, "must be between 0 and 1000, not 1001"),
        ("ignore_eos", "yes", "must be true or false, not 'yes'"),
        ("ignore_eos", 1, "must be true or false, not 1"),
        ("stop", ("ok", ""), "must not be empty: an empty text would end every reply at once"),
        ("stop", "", "must not be empty: an empty text would end every reply at once"),
        ("stop", [3], "must be a text or a list of texts, not [3]"),
        ("stop", 3, "must be a text or a list of texts, not 3"),
    ],
)
def test_values_out_of_range_name_the_field(field, value, problem):
    with pytest.raises(FieldError) as caught:
        Request(**{field: value})
    assert (caught.value.field, caught.value.problem) == (field, problem)
    assert str(caught.value) == f"{field} {problem}"
    with pytest.raises(FieldError):
        replace(Request(), **{field: value})


def test_numbers_that_cannot_be_printed_are_refused():
    with pytest.raises(FieldError, match="between 0 and 100, not a value of type int that is too large"):
        Request(temperature=10**5000)
    with pytest.raises(FieldError, match="top_k must have at most 64 bits"):
        Request(top_k=10**5000)


def test_equal_requests_are_equal_however_they_were_written():
    plain = Request(temperature=1.0, top_k=3, stop=("end",), seed=5)
    assert plain == Request(temperature=1, top_k=np.int64(3), stop="end", seed=np.int32(5))
    assert plain == Request(temperature=np.float32(1), top_k=3, stop=["end"], seed=5)
    assert hash(plain) == hash(replace(plain))


def test_the_keywords_are_the_fields():
    assert set(RequestFields.__annotations__) == set(Request.__dataclass_fields__)
    assert set(SAMPLING_FIELDS) < set(RequestFields.__annotations__)


def test_values_are_plain():
    values = Request(stop="x", constraint=object()).values()
    assert values["stop"] == ("x",)
    assert "constraint" not in values


def test_a_request_does_not_wait_for_numpy():
    import subprocess

    program = "import sys, tinychat.generate.request, tinychat.generate.prompt; sys.exit('numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
