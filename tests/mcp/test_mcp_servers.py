"""Which servers there are: config.toml, an mcp.json that is named, and what is shown of them."""

import json
from pathlib import Path

import pytest

from tinychat.configuration import parse_configuration
from tinychat.errors import ConfigurationError, McpError
from tinychat.mcp.content import block_text, resource_text, result_text
from tinychat.mcp.offers import prompt_of, resource_of, tool_name, tool_of
from tinychat.mcp.server_settings import ServerSettings
from tinychat.mcp.servers import all_servers, mcp_servers, read_mcp_file

FILE = Path("/etc/tinychat/config.toml")
WHOLE = """
[mcp.servers.files]
command = "npx"
args = ["-y", "server files", "--key", "${KEY}"]
env = { TOKEN = "${MY_TOKEN}", MODE = "fast" }
cwd = "data"
timeout = 2.5
tools = ["read"]

[mcp.servers.web]
url = "https://user:pass@example.org/mcp?key=${KEY}"
headers = { Authorization = "Bearer ${KEY}" }
enabled = false
"""


def configured(text):
    return parse_configuration(text.encode(), FILE).servers


def test_servers_of_the_configuration_file():
    files, web = configured(WHOLE).values()
    assert (files.command, files.args[0], files.timeout, files.tools, files.is_enabled) == (
        "npx",
        "-y",
        2.5,
        ("read",),
        True,
    )
    assert (web.url, web.is_enabled, web.timeout, web.tools) == (
        "https://user:pass@example.org/mcp?key=${KEY}",
        False,
        60,
        None,
    )


def test_no_secret_is_shown():
    files, web = configured(WHOLE).values()
    assert files.line == "TOKEN=... MODE=... npx -y 'server files' --key '${KEY}' (in data)"
    assert web.line == "https://example.org/mcp?... (headers: Authorization)"
    shown = repr(files.resolved({"KEY": "k", "MY_TOKEN": "hush"})) + repr(web)
    assert not any(secret in shown for secret in ("hush", "fast", "pass", "Bearer"))


def test_variables_get_their_values_where_they_are_asked_for():
    files, web = configured(WHOLE).values()
    environment = {"KEY": "${MY_TOKEN}", "MY_TOKEN": "$KEY", "HOME": "/home/me"}
    found = files.resolved(environment)
    assert found.args == ("-y", "server files", "--key", "${MY_TOKEN}")
    assert found.env == {"TOKEN": "$KEY", "MODE": "fast"}
    assert found.cwd == "/etc/tinychat/data"
    assert web.resolved({"KEY": "k"}).headers == {"Authorization": "Bearer k"}
    # Only in braces, and never in the command.
    other = ServerSettings("x", command="${KEY}", args=("$KEY", "%KEY%", "${}"))
    assert other.resolved({}).args == other.args
    with pytest.raises(McpError, match=r"the MCP server files wants \$\{KEY\}: set this variable"):
        files.resolved({"MY_TOKEN": ""})


def test_what_decides_what_is_started_decides_the_fingerprint():
    first = ServerSettings("x", command="a", args=("b",))
    assert first.fingerprint == ServerSettings("y", command="a", args=("b",), timeout=3).fingerprint
    others = [
        ServerSettings("x", command="a", args=("c",)),
        ServerSettings("x", command="a b"),
        ServerSettings("x", command="a", args=("b",), env={"LD_PRELOAD": "evil.so"}),
        ServerSettings("x", command="a", args=("b",), cwd="/tmp"),
        ServerSettings("x", url="https://a/b"),
    ]
    assert len({one.fingerprint for one in [first, *others]}) == 6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[mcp]\nserver = 1", "line 2: server is unknown: servers are in [mcp.servers.NAME]"),
        ("mcp = 1", "line 1: mcp must be a section, as [mcp]"),
        ("[mcp.servers]\nx = 1", "line 2: x must be a section, as [mcp.servers.x]"),
        ("[mcp.servers.x]\ncommand = 1", "line 2: command must be the program that is the server"),
        ("[mcp.servers.x]\ncommand = 'a'\nargs = 'b'", "line 3: args must be a list of texts"),
        ("[mcp.servers.x]\ncommand = 'a'\nenv = { 'A=B' = 'c' }", "line 3: env must be a table of texts"),
        ("[mcp.servers.x]\ncommand = 'a'\nurl = 'b'", "line 2: command or url must be given, and not both"),
        ("[mcp.servers.x]\ntimeout = 1", "in mcp.servers.x: command or url must be given, and not both"),
        ("[mcp.servers.x]\nurl = 'a'\nargs = []", "line 3: args is only for a server with a command"),
        ("[mcp.servers.x]\ncommand = 'a'\nheaders = {}", "line 3: headers is only for a server with a url"),
        ("[mcp.servers.x]\ncommand = 'a'\ntimeout = 60000", "line 3: timeout must be a number of seconds, up to 3600"),
        ("[mcp.servers.x]\ncommand = 'a'\nrun = true", "line 3: run is unknown; expected one of command, args, "),
        ("[mcp.servers.'a:b']\ncommand = 'a'", "a:b must be up to 40 letters, digits"),
    ],
)
def test_a_wrong_server_is_one_line(text, message):
    with pytest.raises(ConfigurationError) as caught:
        configured(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_of_other_programs(tmp_path):
    path = tmp_path / "mcp.json"
    servers = {
        "files": {"command": "npx", "args": ["a"], "autoApprove": ["rm"], "type": "stdio", "cwd": "sub"},
        "web": {"url": "http://localhost:1/mcp", "disabled": True},
    }
    path.write_text(json.dumps({"mcpServers": servers, "inputs": []}))
    found = all_servers(
        configured(WHOLE.replace("[mcp.servers.files]", "[mcp.servers.mine]").partition("[mcp.servers.web]")[0]), path
    )
    assert [*found] == ["mine", "files", "web"]
    assert found["files"].resolved({}).cwd == str(tmp_path / "sub")
    assert not found["web"].is_enabled
    with mcp_servers(found) as there:
        assert [*there] == ["mine", "files"]
        assert not any(server._connection for server in there.values())
        with pytest.raises(McpError, match="files is not started"):
            there["files"].read_resource("notes://1")
    with pytest.raises(ConfigurationError, match=r"mcp.json: the server 'files' is in config.toml, too"):
        all_servers(configured(WHOLE), path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "is not valid JSON"),
        ("[]", "must hold a JSON object"),
        ('{"servers": {}}', "has no servers: it must hold"),
        ('{"mcpServers": {"x": 1}}', "the server 'x': it must be an object"),
        ('{"mcpServers": {"x": {"url": "http://a", "type": "sse"}}}', "the server 'x': type sse is a way that MCP has"),
        ('{"mcpServers": {"a b": {"command": "c"}}}', "the server 'a b': name must be up to 40 letters"),
        ('{"mcpServers": {"x": {"command": "c", "args": [1]}}}', "the server 'x': args must be a list of texts"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path, text, message):
    path = tmp_path / "mcp.json"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        read_mcp_file(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        read_mcp_file(tmp_path / "missing.json")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("example.org/mcp", "has no address: url must be such as"),
        ("ftp://example.org", "has no address"),
        ("http://[::1", "has no address"),
        ("http://example.org/mcp", "is not encrypted"),
    ],
)
def test_addresses_are_checked(url, message):
    server = ServerSettings("x", url=url)
    with pytest.raises(McpError, match=message):
        server.resolved({})
    for good in ("https://example.org", "http://localhost:3/mcp", "http://[::1]/mcp"):
        ServerSettings("x", url=good).resolved({})
    ServerSettings("x", url="http://example.org").resolved({"TINYCHAT_PLAIN_HTTP": "1"})
    with pytest.raises(McpError, match="has a header with characters that no header can have"):
        ServerSettings("x", url="https://a", headers={"X": "${V}"}).resolved({"V": "a\r\nHost: b"})


def test_a_folder_in_a_home_that_is_not_known():
    with pytest.raises(McpError, match="the MCP server x cannot start in ~nouser/x: the home folder is not known"):
        ServerSettings("x", command="true", cwd="~nouser/x").resolved({})


def test_names_for_models_are_plain_short_and_differ():
    assert tool_name("files", "read") == "files_read"
    assert tool_name("my.files", "a b/c\u202e") == "my_files_a_b_c_"
    long, other = tool_name("s", "x" * 80), tool_name("s", "x" * 81)
    assert len(long) == len(other) == 64 and long != other


def test_content_is_text_and_the_rest_is_told():
    blocks = [
        {"type": "text", "text": "a"},
        {"type": "image", "data": "QUJD" * 4000, "mimeType": "image/png"},
        {"type": "audio", "data": "QQ=="},
        {"type": "resource_link", "uri": "notes://1\n2", "name": "n"},
        {"type": "resource", "resource": {"uri": "notes://1", "text": "b"}},
        {"type": "hologram"},
        {"type": "text"},
        7,
    ]
    lines = ["a", "[image, 12 KB]", "[audio, 1 B]", "[resource notes://1\\x0a2]", "b", "[hologram]", "[text]"]
    assert result_text({"content": blocks}).split("\n") == [*lines, "[content that is not understood]"]
    assert result_text({"content": [], "structuredContent": {"a": "é"}}) == '{"a": "é"}'
    assert result_text({"content": blocks[:1], "structuredContent": {"a": 1}}) == "a"
    assert result_text({}) == ""
    assert block_text({"type": "image", "data": "QUJD" * 1_000_000}) == "[image, 3.0 MB]"


def test_resources_are_text_where_they_can_be():
    assert resource_text({"blob": "w6k=", "mimeType": "text/plain; charset=utf-8"}) == "é"
    assert resource_text({"blob": "e30=", "mimeType": "application/json"}) == "{}"
    assert resource_text({"blob": "/w==", "mimeType": "text/plain"}) == "[text/plain, 1 B]"
    assert resource_text({"blob": "%%%%", "mimeType": "image/png"}) == "[image/png, 3 B]"
    assert resource_text({"uri": "a"}) == "[a resource without contents]"


def test_offers_are_read_and_checked():
    tool = tool_of({"name": "f", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}})
    assert (tool.description, tool.says_it_only_reads) == ("", True)
    assert not tool_of({"name": "f", "inputSchema": {}, "annotations": {"readOnlyHint": "yes"}}).says_it_only_reads
    prompt = prompt_of({"name": "p", "arguments": [{"name": "a", "required": True}, {"name": "b"}]})
    assert [(one.name, one.is_required) for one in prompt.arguments] == [("a", True), ("b", False)]
    resource = resource_of({"uri": "notes://1", "name": "n", "title": "N\n"})
    assert resource.name == "N\\x0a"
    for read, wrong in (
        (tool_of, {"name": "f"}),
        (tool_of, {"name": "f\x1b", "inputSchema": {}}),
        (tool_of, {"name": "f", "inputSchema": {"type": "string"}}),
        (tool_of, {"name": "", "inputSchema": {}}),
        (prompt_of, {"name": "p", "arguments": "a"}),
        (prompt_of, {"name": "p", "arguments": [{}]}),
        (resource_of, {"name": "n"}),
    ):
        with pytest.raises(McpError):
            read(wrong)
