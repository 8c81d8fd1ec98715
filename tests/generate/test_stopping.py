from hypothesis import given
from hypothesis import strategies as st

from tinychat.generate.stopping import StopStringFilter


def run(strings, deltas):
    stops = StopStringFilter(strings)
    passed = [stops.add(delta) for delta in deltas]
    return "".join([*passed, stops.finish()]), stops.found


def test_text_passes_at_once_when_it_cannot_begin_a_stop_string():
    stops = StopStringFilter(["END"])
    assert stops.add("hello ") == "hello "
    assert stops.add("wor") == "wor"


def test_a_stop_string_across_pieces_never_appears():
    stops = StopStringFilter(["\nUser:"])
    assert stops.add("Yes.\nUs") == "Yes."
    assert stops.add("er: what") == ""
    assert stops.found == "\nUser:"
    assert stops.add("more") == ""
    assert stops.finish() == ""


def test_a_false_start_is_passed_on():
    stops = StopStringFilter(["\nUser:"])
    assert stops.add("Yes.\nUs") == "Yes."
    assert stops.add("ing it") == "\nUsing it"
    assert stops.found is None


def test_held_back_text_comes_at_the_end():
    assert run(["END"], ["the EN"]) == ("the EN", None)


def test_a_start_inside_a_start():
    assert run(["aab"], ["a", "a", "a", "b", "c"]) == ("a", "aab")


def test_the_string_that_is_complete_first_wins():
    assert run(["bcd", "cd", "c"], ["abcd"]) == ("ab", "c")
    assert run(["bc", "c"], ["abcd"]) == ("a", "bc")


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    st.lists(st.text("abc", max_size=5), max_size=8),
)
def test_how_the_text_is_cut_makes_no_difference(strings, deltas):
    assert run(strings, deltas) == run(strings, ["".join(deltas)])


@given(st.text("ab", min_size=1, max_size=4), st.text("abc", max_size=20))
def test_one_string_cuts_where_find_says(string, text):
    passed, found = run([string], text)
    assert passed == text.split(string)[0]
    assert (found is not None) == (string in text)
