"""Chat templates of our own that write calls as the models of each family do."""

_BEGIN = """\
{%- if tools %}{{ '<|system|>\\nTools: ' + (tools | tojson) + '<|end|>\\n' }}{% endif %}
{%- for message in messages %}
    {{- '<|' + message.role + '|>\\n' + (message.content or '') }}
    {%- if message.tool_calls %}
"""
_END = """
    {%- endif %}
    {{- '<|end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}
"""
_ALL = "{%- for call in message.tool_calls %}{% set f = call.function %}"
_JSON = """{{- '{"' + name_key + '": ' + (f.name | tojson) + ', "' + key + '": ' + (f.arguments | tojson) }}"""
_TEXT = "(value if value is string else value | tojson)"


def _each(one, between, around):
    """Return a program that writes each call by `one`, with texts between two of them and around all."""
    return (
        f"{{{{- {around[0]!r} }}}}{_ALL}{one}"
        f"{{%- if not loop.last %}}{{{{- {between!r} }}}}{{% endif %}}{{% endfor %}}{{{{- {around[1]!r} }}}}"
    )


def _objects(begin, end, between, name_key="name", key="arguments", around=("", ""), more=""):
    """Return a program that writes calls as JSON objects, in a section or each between two marks."""
    one = _JSON.replace("name_key", f"'{name_key}'").replace("key +", f"'{key}' +")
    return _each(f"{{{{- {begin!r} }}}}{one}{more}{{{{- '}}' + {end!r} }}}}", between, around)


def _named(begin, middle, end, between="", around=("", "")):
    """Return a program that writes names, each before a JSON object."""
    return _each(f"{{{{- {begin} + f.name + {middle} + (f.arguments | tojson) + {end!r} }}}}", between, around)


def _tagged(begin, keys, end, between="\n", around=("", "")):
    """Return a program that writes arguments as bare texts between tags."""
    key_begin, key_end, value_end = keys
    word = "('true' if value is string else 'false')"
    written = f"{key_end!r}".replace("{type}", f"' + {word} + '")
    members = (
        "{%- for key, value in f.arguments.items() %}"
        f"{{{{- {key_begin!r} + key + {written} + {_TEXT} + {value_end!r} }}}}{{% endfor %}}"
    )
    return _each(f"{{{{- {begin[0]!r} + f.name + {begin[1]!r} }}}}{members}{{{{- {end!r} }}}}", between, around)


def _pythonic(around, between):
    members = "{%- for key, value in f.arguments.items() %}{{- ', ' if not loop.first }}{{- key + '=' }}"
    value = "{%- if value is string or value is mapping %}{{- value | tojson }}{% else %}{{- value }}{% endif %}"
    return _each(f"{{{{- f.name + '(' }}}}{members}{value}{{% endfor %}}{{{{- ')' }}}}", between, around)


def _braced(begin, quote, end):
    value = """\
{%- macro write(value) %}
    {%- if value is string %}{{- QUOTE + value + QUOTE }}
    {%- elif value is mapping %}{{- '{' }}
        {%- for key, item in value.items() %}{{- ',' if not loop.first }}{{- key + ':' }}{{- write(item) }}{% endfor %}
        {{- '}' }}
    {%- elif value is sequence %}{{- '[' }}
        {%- for item in value %}{{- ',' if not loop.first }}{{- write(item) }}{% endfor %}
        {{- ']' }}
    {%- else %}{{- value | tojson }}{% endif %}
{%- endmacro %}
""".replace("QUOTE", repr(quote))
    return f"{value}{_ALL}{{{{- {begin!r} + f.name + write(f.arguments) + {end!r} }}}}{{% endfor %}}"


_NUMBER = "(loop.index0 | string)"
_PROGRAMS = {
    "hermes": _objects("<tool_call>\n", "\n</tool_call>", "\n"),
    "mistral list": "{%- if message.tool_calls[0].id | length != 9 %}{{ raise_exception('9 letters') }}{% endif %}"
    + _objects("", "", ", ", around=("[TOOL_CALLS][", "]"), more="{{- ', \"id\": \"' + call.id + '\"' }}"),
    "command r": _objects(
        "", "", ",\n    ", "tool_name", "parameters", ("<|START_ACTION|>[\n    ", "\n]<|END_ACTION|>")
    ),
    "apertus": "{{- '<|tools_prefix|>[' }}"
    + _ALL
    + "{{- '{' + (f.name | tojson) + ': ' + (f.arguments | tojson) + '}' }}{{- ', ' if not loop.last }}{% endfor %}"
    "{{- ']<|tools_suffix|>' }}",
    "llama 3": "{%- if message.tool_calls | length > 1 %}{{ raise_exception('one call at once') }}{% endif %}"
    + _objects("", "", "", key="parameters"),
    "mistral": _named("'[TOOL_CALLS]'", "'[ARGS]'", ""),
    "mistral 3.2": _named("'[TOOL_CALLS]'", "'[CALL_ID]' + call.id + '[ARGS]'", ""),
    "kimi": _named(
        "'<|tool_call_begin|>functions.'",
        f"':' + {_NUMBER} + '<|tool_call_argument_begin|>'",
        "<|tool_call_end|>",
        around=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    ),
    "solar": _named(
        "'<|tool_call:begin|>' + call.id + '<|tool_call:name|>'",
        "'<|tool_call:args|>'",
        "<|tool_call:end|>",
        around=("<|tool_calls|>", "<|calls|>"),
    ),
    "deepseek r1": _named(
        "'<｜tool▁call▁begin｜>function<｜tool▁sep｜>'",  # noqa: RUF001
        "'\\n```json\\n'",
        "\n```<｜tool▁call▁end｜>",  # noqa: RUF001
        "\n",
        ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),  # noqa: RUF001
    ),
    "functionary": _named("'<function='", "'>'", "</function>"),
    "qwen": _tagged(
        ("<tool_call>\n<function=", ">\n"),
        ("<parameter=", ">\n", "\n</parameter>\n"),
        "</function>\n</tool_call>",
    ),
    "minimax": _tagged(
        ('<invoke name="', '">\n'),
        ('<parameter name="', '">', "</parameter>\n"),
        "</invoke>",
        around=("<minimax:tool_call>\n", "\n</minimax:tool_call>"),
    ),
    "glm": _tagged(("<tool_call>", "\n"), ("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"), "</tool_call>"),
    "deepseek 3.2": _tagged(
        ('<｜DSML｜invoke name="', '">\n'),  # noqa: RUF001
        ('<｜DSML｜parameter name="', '" string="{type}">', "</｜DSML｜parameter>\n"),  # noqa: RUF001
        "</｜DSML｜invoke>",  # noqa: RUF001
        around=("<｜DSML｜function_calls>\n", "\n</｜DSML｜function_calls>"),  # noqa: RUF001
    ),
    "lfm2": _pythonic(("<|tool_call_start|>[", "]<|tool_call_end|>"), ", "),
    "olmo 3": _pythonic(("<function_calls>\n", "\n</function_calls>"), "\n"),
    "gemma 4": _braced("<|tool_call>call:", '<|"|>', "<tool_call|>"),
    "functiongemma": _braced("<start_function_call>call:", "<escape>", "<end_function_call>"),
}
TEMPLATES = {name: f"{_BEGIN}{program}{_END}" for name, program in _PROGRAMS.items()}
HARMONY = """\
{%- for message in messages %}
    {%- if message.tool_calls %}{% set f = message.tool_calls[0].function %}
        {{- '<|start|>assistant to=functions.' + f.name + '<|channel|>commentary json<|message|>' }}
        {{- f.arguments | tojson }}{{- '<|call|>' }}
    {%- else %}
        {{- '<|start|>' + message.role + '<|channel|>final<|message|>' + message.content + '<|end|>' }}
    {%- endif %}
{%- endfor %}
{%- if tools %}{{ tools | tojson }}{% endif %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}
"""
# As Muse Glimmer's: a call is a message to its tool, and arguments must be an object.
MUSE = """\
{%- for message in messages %}
    {%- if message.tool_calls %}
        {%- for call in message.tool_calls %}{% set f = call.function %}
            {{- '<|start|>assistant to=' + f.name + '<|message|><atem:function_calls>\\n' }}
            {{- '<atem:invoke name="' + f.name + '">\\n' }}
            {%- for k, v in f.arguments.items() %}
                {{- '<atem:parameter name="' + k + '">' + (v if v is string else v | tojson) + '</atem:parameter>\\n' }}
            {%- endfor %}
            {{- '</atem:invoke>\\n</atem:function_calls><|eom|>' }}
        {%- endfor %}
    {%- else %}
        {{- '<|start|>' + message.role + (' to=user' if message.role == 'assistant' else '') }}
        {{- '<|message|>' + message.content + '<|eot|>' }}
    {%- endif %}
{%- endfor %}
{%- if tools %}{{ tools | tojson }}{% endif %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}
"""
# As Inkling's: each content is a message of its own, and words for an effort are a number.
INKLING = """\
{%- set mark = {'user': '<|message_user|>', 'assistant': '<|message_model|>', 'tool': '<|message_tool|>'} %}
{%- set system = '<|message_system|>' %}
{%- if tools %}{{ system + 'tool_declare<|content_xml|>' + tools | tojson + '<|end_message|>' }}{% endif %}
{{- system + '<|content_text|>Thinking effort level: ' ~ reasoning_effort | default(0.9) | float ~ '<|end_message|>' }}
{%- for message in messages %}
    {%- if message.reasoning_content %}
        {{- '<|message_model|><|content_thinking|>' + message.reasoning_content + '<|end_message|>' }}
    {%- endif %}
    {%- if message.content %}
        {{- mark.get(message.role, system) + '<|content_text|>' + message.content + '<|end_message|>' }}
    {%- endif %}
    {%- for call in message.tool_calls or [] %}{% set f = call.function %}
        {{- '<|message_model|>' + f.name + '<|content_invoke_tool_json|>{"name":' + f.name | tojson }}
        {{- ',"args":' + dict(f.arguments.items()) | tojson + '}<|end_message|>' }}
    {%- endfor %}
    {%- if message.role == 'assistant' %}{{ '<|content_model_end_sampling|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|message_model|>' }}{% endif %}
"""
# Knows tools and leaves calls where the model has written them, as LFM2's and Granite's of 2025 do.
CONTENT_ONLY = """\
{%- if tools %}{{ '<|system|>\\n<|tool_list_start|>' + (tools | tojson) + '<|tool_list_end|><|end|>\\n' }}{% endif %}
{%- for message in messages %}{{- '<|' + message.role + '|>\\n' + message.content + '<|end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}
"""
# Knows no tools, no system prompt, and only turns of user and assistant.
ALTERNATING = """\
{%- for message in messages %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns must alternate') }}{% endif %}
    {{- '<|' + message.role + '|>\\n' + message.content + '<|end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}
"""
