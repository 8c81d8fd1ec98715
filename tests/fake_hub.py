"""The hub's protocol, spoken by a server of our own on this machine."""

import hashlib
import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_of_a_test"


class Hub(BaseHTTPRequestHandler):
    """Serves ``server.repositories``: {repo id: {path: bytes}}, gated where the id says so.

    Answers have ``server.headers`` over their own; weights lie below ``server.elsewhere`` if that is set.
    """

    def do_HEAD(self):
        self._answer()

    def do_GET(self):
        self._answer()

    def log_message(self, *arguments):
        pass

    def _answer(self):
        self.server.asked.append(f"{self.command} {self.path}")
        path = self.path.split("?")[0]
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/([^/]+)", path):
            self._answer_api(*match.groups())
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._answer_file(*match.groups())
        else:
            self._send(404)

    def _answer_api(self, repo_id, kind, revision):
        if self.server.broken:
            return self._send(500)
        files = self.server.repositories.get(repo_id)
        if files is None:
            return self._send(404, X_Error_Code="RepoNotFound")
        if "gated" in repo_id and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._send(403, X_Error_Code="GatedRepo")
        if revision not in ("main", COMMIT) or "other-branch" in repo_id:
            return self._send(404, X_Error_Code="RevisionNotFound")
        if kind == "tree":
            listing = [
                {"type": "file", "path": path, "size": len(content), "oid": tag(content)}
                for path, content in files.items()
            ]
        else:
            siblings = [{"rfilename": path, "size": len(content or b"")} for path, content in files.items()]
            listing = {"id": repo_id, "sha": COMMIT, "siblings": siblings}
        return self._send(200, json.dumps(listing).encode(), Content_Type="application/json")

    def _answer_file(self, repo_id, revision, path):
        content = self.server.repositories[repo_id].get(path)
        if content is None:
            return self._send(404, X_Error_Code="EntryNotFound")
        headers = {"ETag": f'"{tag(content)}"', "X_Repo_Commit": COMMIT} | self.server.headers
        if path in self.server.held_back and self.command == "GET":
            self.server.held_back[path].wait(30)
        if self.server.elsewhere and path.endswith(".safetensors"):
            headers |= {"X_Linked_Etag": f'"{tag(content)}"', "Location": f"{self.server.elsewhere}/{path}"}
            return self._send(302, **headers)
        return self._send(200, content, **headers)

    def _send(self, status, content=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


def tag(content):
    return hashlib.sha1(content).hexdigest()


@contextmanager
def serving(repositories):
    """Serve repositories, {repo id: {path: bytes}}, within the block; gives the server, whose attributes may be set."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.asked, server.broken = [], False
    server.headers, server.elsewhere, server.held_back = {}, None, {}
    server.repositories = repositories
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()
