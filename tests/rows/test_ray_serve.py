"""The server as a deployment of Ray Serve, where Ray is installed."""

import os
import socket
import subprocess
import sys
from importlib.util import find_spec

import pytest
from import_graph import REPO

PROGRAM = """
import json, sys, urllib.request
sys.path.insert(0, "scripts")
from compare_spread import start_ray
from ray import serve
from tinychat import RowAnswerer
from tinychat.ray import server_deployment
port = int(sys.argv[1])
start_ray()
serve.start(http_options={"host": "127.0.0.1", "port": port})
serve.run(server_deployment("demo", temperature=0.0, max_tokens=12))
url = f"http://127.0.0.1:{port}"
assert urllib.request.urlopen(url + "/health").status == 200
body = json.dumps({"messages": [{"role": "user", "content": "Hello"}]}).encode()
answer = urllib.request.urlopen(urllib.request.Request(url + "/v1/chat/completions", body))
text = json.load(answer)["choices"][0]["message"]["content"]
(row,) = RowAnswerer("demo", temperature=0.0, max_tokens=12).answer([{"prompt": "Hello"}])
assert text == row["reply"], (text, row)
serve.shutdown()
"""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
def test_a_replica_answers_as_a_row_is_answered():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = os.environ | {"PYTHONPATH": str(REPO)}
    command = [sys.executable, "-c", PROGRAM, str(port)]
    result = subprocess.run(
        command, cwd=REPO, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert result.returncode == 0, result.stderr
