"""Templates that want to hang, to fill the memory, or to get out."""

import time

import pytest
from text.tokenizer_folders import write_style

from tinychat.errors import TextError
from tinychat.limited_process import SECONDS
from tinychat.text.loading import load_tokenizer
from tinychat.text.template import ChatTemplate

pytestmark = pytest.mark.slow

MESSAGES = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "yes"}]

ENDLESS = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "macro calls": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(90) }}",
    "power": "{% set x = 10 ** (10 ** 9) %}",
    "folded power": "{{ 2 ** 9999999999 }}",
    "strip": "{{ ('a' * 999999).strip('c' * 500000 ~ 'a') }}",
}
"""The last three are one call that takes minutes in C, where no signal reaches Python."""

HUGE = {
    "repeated text": "{{ 'a' * 10 ** 9 }}",
    "repeated list": "{{ [1] * 10 ** 9 }}",
    "repeated tuple": "{{ 10 ** 9 * (1, 2) }}",
    "products": "{% set ns = namespace(x=3) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "range": "{% for i in range(10 ** 9) %}{% endfor %}",
    "concatenation": "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "addition": "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "printed lists of lists": (
        "{% set ns = namespace(x=['a']) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}"
    ),
    "replace filter": "{{ ('a' * 99999)|replace('a', 'b' * 99999) }}",
    "replace method": "{{ ('a' * 99999).replace('', 'b' * 99999) }}",
    "join filter": "{{ range(99999)|join('b' * 99999) }}",
    "join method": "{{ ('b' * 99999).join('a' * 99999) }}",
    "map": "{% set x = range(99999)|map('replace', '', 'b' * 99999)|list %}",
    "indent": "{{ 'x'|indent(10 ** 9) }}",
    "indent by text": "{{ ('\\n' * 99999)|indent('b' * 99999, true, true) }}",
    "tojson indent": "{{ messages|tojson(indent=10 ** 9) }}",
    "tojson separators": "{{ range(99999)|list|tojson(separators=('b' * 99999, ':')) }}",
    "output": "{% for i in range(99999) %}" + "x" * 9999 + "{% endfor %}",
    "captured output": "{% set x %}{% for i in range(99999) %}" + "x" * 9999 + "{% endfor %}{% endset %}",
    "many values": "{% for i in range(99999) %}{% set x = ('a,' * 99999).split(',') %}{% endfor %}",
    "date": "{{ strftime_now('%Y' * 99999) }}",
    "printf": "{{ '%1000000000d' % 1 }}",
    "format": "{{ '{:>1000000000}'.format(1) }}",
    "format_map": "{{ '{x:>1000000000}'.format_map({'x': 1}) }}",
    "nested width": "{{ '{:{}}'.format(1, 10 ** 9) }}",
    "width of digits": "{{ ('{:>' ~ '9' * 9999 ~ '}').format(1) }}",
    "precision": "{{ '%.1000000000f' % 1 }}",
    "width from the values": "{{ '%*d' % (10 ** 9, 1) }}",
    "width after brackets in a key": "{{ '%(a(b)c)1000000000d' % {'a(b)c': 1} }}",
    "many fields": "{{ ('{0}' * 99999).format('a' * 99999) }}",
    "many fields of a namespace": (
        "{% set n = namespace(a='a' * 99999) %}{{ ('{0.a}' * 9999).format(n) }}{{ ('{0.a}' * 9999).format(n) }}"
    ),
    "many conversions": "{{ ('%(a)s' * 99999)|format(a='a' * 99999) }}",
    "format filter": "{{ '%1000000000d'|format(1) }}",
    "zeros": "{{ 'x'.zfill(10 ** 9) }}",
    "justify": "{{ 'x'.ljust(10 ** 9) }}",
    "expandtabs": "{{ '\\t'.expandtabs(10 ** 9) }}",
    "center": "{{ 'x'|center(10 ** 9) }}",
    "batch": "{{ [1]|batch(10 ** 9, 0)|list }}",
    "round": "{{ 1|round(10 ** 9, 'ceil') }}",
}
ESCAPES = {
    "class": "{{ ''.__class__ }}",
    "class as item": "{{ ''['__class__'] }}",
    "class of messages": "{{ messages.__class__.__mro__ }}",
    "attr filter": "{{ ''|attr('__class__') }}",
    "map attribute": "{{ messages|map(attribute='__class__')|list }}",
    "sort attribute": "{{ messages|sort(attribute='__init__') }}",
    "globals": "{{ raise_exception.__globals__ }}",
    "global's type": "{{ namespace.__init__ }}",
    "self": "{{ self.__init__.__globals__ }}",
    "macro": "{% macro f() %}{% endmacro %}{{ f._func }}",
    "loop": "{% for m in messages %}{{ loop._iterable }}{% endfor %}",
    "change a list": "{% set _ = messages.append(1) %}",
    "change a dict": "{% set _ = messages[0].update({'role': 'x'}) %}",
    "clear": "{{ messages.clear() }}",
    "format": "{{ '{0.__class__}'.format(1) }}",
    "format item": "{{ '{0[__class__]}'.format('x') }}",
    "format_map": "{{ '{x.__class__}'.format_map({'x': 1}) }}",
    "kept format": "{% set f = '{0.__init__.__globals__}'.format %}{{ f(raise_exception) }}",
    "bytes": "{{ 'x'.encode().hex() }}",
    "arguments of format": "{{ ''.format.args[0].from_string('x') }}",
    "overlay": "{{ ''.format.args[0].overlay(extensions=['this.module']) }}",
    "budget": "{{ ''.format.args[0].budget.take(-9) }}",
    "function of format": "{{ ''.format.__closure__ }}",
    "self of a method": "{{ ''.upper.__self__ }}",
    "name of a macro": "{% macro f() %}{% endmacro %}{{ f.name }}",
    "keys of a type": "{{ dict.fromkeys('ab') }}",
    "include": "{% include 'passwd' %}",
    "import": "{% import 'passwd' as x %}",
    "from": "{% from 'passwd' import x %}",
    "extends": "{% extends 'passwd' %}",
    "lipsum": "{{ lipsum.__globals__ }}",
    "cycler": "{{ cycler('a').next }}{{ cycler.__init__() }}",
}
BROKEN = {
    "syntax": "{% if %}",
    "unknown filter": "{{ 'x'|nothing }}",
    "unknown test": "{{ 'x' is nothing }}",
    "undefined": "{{ nothing.more }}",
    "type": "{{ 'a' + 1 }}",
    "division": "{{ 1 / 0 }}",
    "endless macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "brackets": "{{ " + "(" * 9999 + "1" + ")" * 9999 + " }}",
    "attributes": "{{ messages" + ".x" * 9999 + " }}",
    "nested ifs": "{% if 1 %}" * 999 + "{% endif %}" * 999,
    "recursive loop": "{% for m in messages recursive %}{{ loop(m) }}{% endfor %}",
    "break outside": "{% break %}",
    "long": "x" * 300_000,
    "huge number": "{{ " + "9" * 9999 + " }}",
    "refused": "{{ raise_exception('only\nusers') }}",
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return load_tokenizer(write_style(tmp_path_factory.mktemp("t"), "chatml"))


def assert_refused(source, tokenizer):
    started = time.monotonic()
    with pytest.raises(TextError, match=r"^a\.jinja: chat template ") as error:
        ChatTemplate(source, tokenizer, "a.jinja").render(MESSAGES)
    assert time.monotonic() - started < SECONDS + 3
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ENDLESS)
def test_endless(tokenizer, name):
    assert_refused(ENDLESS[name], tokenizer)


def test_ordinary_searches_are_no_hostile_ones(tokenizer):
    source = "{{ messages[0].content.rsplit('</think>')|last|trim('x') }}{{ messages[0].content.rfind('nothing') }}"
    text = "word " * 100_000 + "</think>xyx"
    assert ChatTemplate(source, tokenizer, "a").render([{"role": "user", "content": text}]) == "y-1"


@pytest.mark.parametrize("name", HUGE)
def test_huge(tokenizer, name):
    assert_refused(HUGE[name], tokenizer)


@pytest.mark.parametrize("name", ESCAPES)
def test_escape(tokenizer, name):
    assert_refused(ESCAPES[name], tokenizer)


@pytest.mark.parametrize("name", BROKEN)
def test_broken(tokenizer, name):
    assert_refused(BROKEN[name], tokenizer)


def test_a_failed_run_leaves_nothing_behind(tokenizer):
    template = ChatTemplate("{{ 'x' * messages[0].content|int }}", tokenizer, "a.jinja")
    with pytest.raises(TextError):
        template.render([{"role": "user", "content": "9999999999"}])
    assert template.render([{"role": "user", "content": "3"}]) == "xxx"


def test_long_conversations_are_within_the_bounds(tokenizer):
    source = (
        "{% for m in messages %}{% for n in messages %}{% if n == m %}"
        "{{ n.content|trim }}{% endif %}{% endfor %}{% endfor %}"
    )
    messages = [{"role": "user", "content": f"{i} " + "word " * 400} for i in range(200)]
    text = ChatTemplate(source, tokenizer, "a.jinja").render(messages)
    assert len(text) == sum(len(message["content"].strip()) for message in messages)


def test_a_template_that_is_endless_for_a_short_conversation_is_not_tried_again(tokenizer):
    template = ChatTemplate(ENDLESS["nested loops"], tokenizer, "a.jinja")
    with pytest.raises(TextError, match="it runs longer than 1 s"):
        template.render(MESSAGES)
    started = time.monotonic()
    for _ in range(20):
        with pytest.raises(TextError, match="it takes too long even for a short one"):
            template.render(MESSAGES)
    assert not template.opens_thinking
    assert time.monotonic() - started < 1
