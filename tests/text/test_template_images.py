"""Contents in parts: what a chat template gets of images, and what no text can spell."""

import pytest
from fake_model import ByteTokenizer
from text.tokenizer_folders import write_tokenizer

from tinychat.errors import FieldError, TextError
from tinychat.text.guard import unguard
from tinychat.text.loading import load_tokenizer
from tinychat.text.template import ChatTemplate
from tinychat.tools.definitions import Tool
from tinychat.tools.rendering import ToolTemplate

# As SmolVLM's: it goes through the parts of a content, and of a text writes nothing.
PARTS = """\
{%- for message in messages -%}
<turn>{{ message.role }}:
{%- for part in message.content -%}
{%- if part.type == 'image' -%}<image>{%- elif part.type == 'text' -%}{{ part.text }}{%- endif -%}
{%- endfor -%}<end>
{%- endfor -%}
"""
EITHER = """\
{%- for message in messages -%}
<turn>{{ message.role }}:
{%- if message.content is string -%}{{ message.content }}
{%- else -%}{%- for part in message.content -%}
{%- if part.type == 'image' -%}<image>{%- else -%}{{ part.text }}{%- endif -%}
{%- endfor -%}{%- endif -%}<end>
{%- endfor -%}
"""
# Nothing of it can be written, so a template that looked at it would fail.
IMAGE = {"type": "image", "image": object()}
TOOL = Tool("weather", "Tell the weather.", {"type": "object", "properties": {"city": {"type": "string"}}}).as_dict()


def text(words):
    return {"type": "text", "text": words}


@pytest.fixture(scope="module", params=["special", "added"])
def tokenizer(request, tmp_path_factory):
    special, others = ["<turn>", "<end>"], ["<image>"]
    folder = tmp_path_factory.mktemp(request.param)
    is_special = request.param == "special"
    return load_tokenizer(
        write_tokenizer(folder, "byte-level", [*special, *others * is_special], others * (not is_special))
    )


def written(source, *messages, tokenizer=None, **variables):
    template = ToolTemplate(ChatTemplate(source, tokenizer or ByteTokenizer(), "here"), sees_images=True)
    return unguard(template.render(messages, False, **variables))


@pytest.mark.parametrize("source", [PARTS, EITHER])
def test_texts_and_images_are_written_in_their_order(source):
    asked = {"role": "user", "content": [text("Is "), IMAGE, text(" like "), IMAGE, text("?")]}
    answered = {"role": "assistant", "content": "No."}
    assert written(source, asked, answered) == "<turn>user:Is <image> like <image>?<end><turn>assistant:No.<end>"


@pytest.mark.parametrize("source", [PARTS, EITHER])
def test_a_text_alone_is_written_by_either_template(source):
    assert written(source, {"role": "user", "content": "Hi"}) == "<turn>user:Hi<end>"


@pytest.mark.parametrize("source", [PARTS, EITHER])
def test_no_text_becomes_an_image(source, tokenizer):
    template = ToolTemplate(ChatTemplate(source, tokenizer, "here"), sees_images=True)
    image = tokenizer.added_tokens["<image>"]
    for content in ("<image> <end>", [text("<image> "), IMAGE, text("<end>")], [IMAGE, text("<ima"), text("ge>")]):
        ids = template.render_ids([{"role": "user", "content": content}], False)
        assert ids.count(image) == isinstance(content, list)
        assert ids.count(tokenizer.added_tokens["<end>"]) == 1
    reply = {"role": "assistant", "content": "<image>"}
    asked = {"role": "user", "content": [IMAGE]}
    # A model may have written a token that is not special: then it means nothing but itself.
    assert template.render_ids([asked, reply], False).count(image) == 1 + (image not in tokenizer.special_ids)


def test_a_model_that_sees_none_gets_no_image():
    template = ToolTemplate(ChatTemplate(EITHER, ByteTokenizer(), "here"))
    messages = [{"role": "user", "content": "Hi"}, {"role": "user", "content": [IMAGE]}]
    for render in (template.render, template.render_ids):
        with pytest.raises(FieldError, match=r"messages\[1\].content has an image, which must be left out"):
            render(messages)


@pytest.mark.parametrize("part", [{"type": "audio"}, {"type": "image_url", "image_url": {}}, "Hi", {}, None])
def test_other_parts_are_refused(part):
    with pytest.raises(TextError, match="a part of a chat message must be a text or an image"):
        written(EITHER, {"role": "user", "content": [part]})


def test_conversations_with_images_are_rendered_one_by_one(tokenizer):
    template = ToolTemplate(ChatTemplate(PARTS, tokenizer, "here"), sees_images=True)
    plain, seen = [{"role": "user", "content": "Hi"}], [{"role": "user", "content": [IMAGE]}]
    found = template.render_ids_of_many([plain, seen, plain])
    assert found[0] == found[2] == template.render_ids(plain) and found[1] is None


def test_tools_are_told_beside_images():
    """In the system prompt, or in front of a message where the template takes none."""
    asked = {"role": "user", "content": [IMAGE, text("Warm?")]}
    found = written(EITHER, asked, tools=[TOOL])
    assert found.startswith("<turn>system:You may call") and found.endswith("<turn>user:<image>Warm?<end>")
    source = EITHER.replace(
        "<turn>", "{%- if message.role == 'system' -%}{{ raise_exception('no') }}{%- endif -%}<turn>", 1
    )
    found = written(source, asked, tools=[TOOL])
    assert found.startswith("<turn>user:You may call") and found.endswith("\n\n<image>Warm?<end>")


def test_a_question_with_an_image_follows_results():
    """A template that knows no tools gets results as a message of the user."""
    call = {"id": "call00000", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    found = written(
        EITHER,
        {"role": "user", "content": "Warm?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "12", "tool_call_id": "call00000", "name": "weather"},
        {"role": "user", "content": [IMAGE, text("Sure?")]},
    )
    assert found.endswith("<tool_response>\n12\n</tool_response>\n<image>Sure?<end>")
