"""The page of the server: its files, its headers, and that all of it comes from here."""

import re
import tomllib
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import pytest
from fake_model import fake_model
from local_server import new_server
from starlette.testclient import TestClient

from tinychat.serve.app import create_app
from tinychat.serve.guard import Door
from tinychat.serve.page import PATHS

FOLDER = files("tinychat.serve.page")
TEXTS = {name: FOLDER.joinpath(name).read_text(encoding="utf-8") for name in PATHS.values()}
SCRIPTS = [name for name in TEXTS if name.endswith(".js")]
MAX_LINES, MAX_COLUMNS = 450, 120
# Ways to make markup, code or styles of a text.
DANGERS = (
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser|setHTML|srcdoc|\beval\b"
    r"|new Function|setTimeout\([\"']|cssText|setAttribute\([\"'](?:on|style)"
)


@pytest.fixture(scope="module")
def client():
    with TestClient(create_app(new_server(fake_model(lambda _ids: 97)), Door()), base_url="http://localhost") as client:
        yield client


def test_the_table_has_every_file_of_the_folder():
    there = {path.name for path in FOLDER.iterdir() if path.name not in ("__init__.py", "__pycache__")}
    assert there == {*PATHS.values()}


@pytest.mark.parametrize(("path", "name"), PATHS.items())
def test_files_are_sent_with_headers_that_keep_the_page_to_itself(client, path, name):
    answer = client.get(path, headers={"accept": "text/html,*/*"})
    assert (answer.status_code, answer.text) == (200, TEXTS[name])
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy.pop("img-src") == "'self' data:"
    assert {key for key, value in policy.items() if value == "'self'"} == {"script-src", "style-src", "connect-src"}
    assert {key for key, value in policy.items() if value == "'none'"} == (
        {"default-src", "base-uri", "form-action", "frame-ancestors"}
    )
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    kinds = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
    assert answer.headers["content-type"].split(";")[0] == kinds[name.rpartition(".")[2]]


def test_a_file_that_has_not_changed_is_not_sent_again(client):
    first = client.get("/page/app.js")
    again = client.get("/page/app.js", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert first.headers["cache-control"] == again.headers["cache-control"] == "no-cache"
    assert client.get("/page/app.js", headers={"If-None-Match": '"another"'}).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        *("/page/", "/page/__init__.py", "/page//app.js", "/page/none.js", "/index.html", "/app.js"),
        *("/page/../__init__.py", "/page/..%2f__init__.py", "/page/%2e%2e/app.py", "/page/..%5capp.py"),
        *("/page/app.js%00", "/page/%2fetc%2fpasswd", "/page/app%2ejs/..", "//etc/passwd"),
    ],
)
def test_other_paths_are_no_files(client, path):
    answer = client.get(path)
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "not_found"


def test_only_reading_is_served(client):
    assert client.head("/").status_code == 200
    assert client.post("/", content=b"x").status_code == 405


class Elements(HTMLParser):
    """Collects the elements of a page, with the text inside each script and style."""

    def __init__(self):
        super().__init__()
        self.found, self.inline = [], ""

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def handle_data(self, data):
        if self.found and self.found[-1][0] in ("script", "style"):
            self.inline += data.strip()


def test_the_page_has_neither_scripts_nor_styles_within_it():
    page = Elements()
    page.feed(TEXTS["index.html"])
    names = {name for _, attributes in page.found for name in attributes}
    assert not page.inline and "style" not in {tag for tag, _ in page.found} | names
    assert [name for name in names if name.startswith("on")] == []
    for _, attributes in page.found:
        for name in ("src", "href"):
            # Relative: behind a proxy the page may lie under another path.
            assert "/" + attributes.get(name, "page/app.js") in PATHS


@pytest.mark.parametrize("name", TEXTS)
def test_nothing_comes_from_elsewhere(name):
    text = re.sub(r"/\*.*?\*/", "", TEXTS[name], flags=re.DOTALL)
    addresses = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"')]*", text))
    assert addresses <= ({"http://www.w3.org/2000/svg"} if name == "icon.svg" else set())
    assert not re.search(r"@import|url\(", text)


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_short(name):
    lines = TEXTS[name].splitlines()
    assert len(lines) <= MAX_LINES and max(map(len, lines)) <= MAX_COLUMNS


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_make_no_markup_of_texts(name):
    assert not re.search(DANGERS, TEXTS[name])
    imported = re.findall(r"^import .* from \"(.*)\";$|^} from \"(.*)\";$", TEXTS[name], re.MULTILINE)
    assert all(f"/page/{(one or other).removeprefix('./')}" in PATHS for one, other in imported)


def test_dangers_are_seen():
    seen = ["a.innerHTML = b", "eval(a)", 'setTimeout("a()")', "a.setAttribute('onclick', b)", "new Function(a)"]
    assert [text for text in seen if not re.search(DANGERS, text)] == []


def test_scripts_import_each_other_in_one_direction():
    graph = {name: {*re.findall(r"from \"\./(.+?)\"", TEXTS[name])} for name in SCRIPTS}
    while graph:
        free = {name for name, needed in graph.items() if not needed & graph.keys()}
        assert free, f"these import each other: {', '.join(graph)}"
        graph = {name: needed for name, needed in graph.items() if name not in free}


def test_the_wheel_carries_the_files():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    # All of the folder, then: whatever does not end in .py, too.
    assert wheel["packages"] == ["tinychat"] and wheel.keys() == {"packages", "force-include"}
