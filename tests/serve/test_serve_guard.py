"""The door of the server: hosts, origins and keys."""

import pytest
from fake_model import fake_model
from local_server import new_server
from starlette.testclient import TestClient

from tinychat.serve.app import create_app
from tinychat.serve.guard import Door
from tinychat.serve.page import PATHS

PAGE = "http://page.example"


@pytest.fixture
def enter():
    """Return a function that sends a request through a door, and returns the answer."""

    def send(door, method="GET", path="/v1/models", body=None, **headers):
        # "__" is how a test writes the hyphen of a header.
        headers = {name.replace("__", "-"): value for name, value in headers.items()}
        with TestClient(create_app(new_server(fake_model(lambda _ids: 97)), door)) as client:
            return client.request(method, path, json=body, headers={"host": "localhost:8080", **headers})

    return send


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1:8080", "[::1]:8080", "LOCALHOST:1", "192.168.1.7:8080", "[fd00::7]"]
)
def test_names_of_this_machine_are_served(enter, host):
    assert enter(Door(), host=host).status_code == 200


@pytest.mark.parametrize("host", ["page.example", "localhost.page.example", "", "127.0.0.1.nip.io", "[::1"])
def test_a_name_that_a_page_lets_point_here_is_not(enter, host):
    answer = enter(Door(), host=host)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "host_refused")


def test_other_hosts_can_be_allowed(enter):
    assert enter(Door(hosts={"box.lan"}), host="box.lan:8080").status_code == 200
    assert enter(Door(hosts={"*"}), host="anything").status_code == 200


@pytest.mark.parametrize("origin", [PAGE, "null", "http://localhost:3000"])
def test_pages_are_refused_unless_they_are_allowed(enter, origin):
    for method in ("GET", "OPTIONS"):
        answer = enter(Door(), method, origin=origin)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "origin_refused")
        assert "access-control-allow-origin" not in answer.headers
    assert enter(Door(origins={origin}), origin=origin).headers["access-control-allow-origin"] == origin


def test_a_preflight_request_needs_no_key_but_the_request_does(enter):
    door = Door(origins={PAGE}, keys=("secret",))
    asked = {"access__control__request__method": "POST", "access__control__request__headers": "authorization"}
    answer = enter(door, "OPTIONS", origin=PAGE, **asked)
    assert answer.status_code == 200 and answer.headers["access-control-allow-headers"] == "authorization"
    assert answer.headers["access-control-allow-origin"] == PAGE
    asked["access__control__request__private__network"] = "true"
    assert enter(door, "OPTIONS", origin=PAGE, **asked).headers["access-control-allow-private-network"] == "true"
    # DELETE: of stored responses.
    assert {"GET", "POST", "DELETE"} <= {*answer.headers["access-control-allow-methods"].split(", ")}
    refused = enter(door, origin=PAGE)
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, PAGE)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": "Bearer secre"}, 401),
        ({"authorization": "Bearer secret "}, 200),
        ({"authorization": "Bearer secret"}, 200),
        ({"authorization": "Bearer other"}, 200),
        ({"authorization": "bearer secret"}, 200),
        ({"authorization": "secret"}, 200),
        ({"authorization": "Basic secret"}, 401),
        ({"x__api__key": "secret"}, 200),
        ({"authorization": "Bearer "}, 401),
        ({"authorization": b"Bearer \xe9\xff"}, 401),
    ],
)
def test_one_of_the_keys_opens(enter, headers, status):
    answer = enter(Door(keys=("secret", "other")), **headers)
    assert answer.status_code == status
    if status == 401:
        error = answer.json()["error"]
        assert error["type"] == "authentication_error" and "secret" not in answer.text


def test_every_path_but_health_and_the_page_needs_the_key(enter):
    door = Door(keys=("secret",))
    for path in ("/health", "/v1/health", *PATHS):
        assert enter(door, path=path).status_code == 200
    for path in ("/page/", "/page", "/page/none.js", "/metrics", "/slots", "/props", "/openapi.json"):
        assert enter(door, path=path).status_code == 401
    for path in ("/health/", "/v1/health/../models"):
        assert enter(door, path=path).status_code == 401
    for path in ("/completion", "/v1/chat/completions", "/infill", "/tokenize", "/slots/0?action=erase"):
        assert enter(door, "POST", path, {"prompt": "a"}).status_code == 401


@pytest.mark.parametrize(
    ("host", "origin", "others"),
    [
        ("localhost:8080", "http://localhost:8080", {}),
        ("LocalHost:8080", "http://localhost:8080", {}),
        ("[::1]:8080", "http://[::1]:8080", {}),
        ("box.lan", "https://box.lan", {"hosts": {"box.lan"}}),
    ],
)
def test_the_page_of_the_server_is_let_in(enter, host, origin, others):
    assert enter(Door(**others), host=host, origin=origin).status_code == 200


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:8080", "http://localhost:3000"),
        ("localhost:8080", "http://127.0.0.1:8080"),
        ("localhost:8080", "http://localhost"),
        ("localhost:8080", "http://localhost:8080.page.example"),
        ("localhost:8080", "null"),
        ("localhost:8080", "file://localhost:8080"),
    ],
)
def test_other_pages_of_this_machine_are_not(enter, host, origin):
    assert enter(Door(), host=host, origin=origin).json()["error"]["code"] == "origin_refused"


def test_a_name_among_all_is_own_only_with_a_key(enter):
    rebound = {"host": "page.example", "origin": PAGE}
    assert enter(Door(hosts={"*"}), **rebound).json()["error"]["code"] == "origin_refused"
    assert enter(Door(hosts={"*"}, keys=("secret",)), **rebound).status_code == 401
    answer = enter(Door(hosts={"*"}, keys=("secret",)), authorization="Bearer secret", **rebound)
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "path", ["/page", "/page/none.js", "/page/../app.py", "/v2/models", "/v1/moderations", "/completion/x"]
)
def test_other_paths_are_errors_in_the_same_form(enter, path):
    answer = enter(Door(), path=path)
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "not_found"


def test_other_methods_are_errors_in_the_same_form(enter):
    answer = enter(Door(), "DELETE", "/completion")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert answer.json()["error"]["message"] == "/completion takes POST, not DELETE: see docs/serve.md"
    # Of a path with several routes, all of them.
    answer = enter(Door(), "PUT", "/v1/responses/x")
    assert (answer.status_code, answer.headers["allow"]) == (405, "DELETE, GET, HEAD")


def test_programs_that_look_for_ollama_find_it(enter):
    assert enter(Door(), path="/").text == "Ollama is running"
    assert "<title>tinychat</title>" in enter(Door(), path="/", accept="text/html,*/*").text
