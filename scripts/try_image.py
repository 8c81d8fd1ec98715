"""Run the steps of the Dockerfile in a fresh chroot, where no container tool runs, and ask the server a question.

    sudo .venv/bin/python scripts/try_image.py [--base FOLDER] [--certificates FILE] [--arg ISA=avx2]

Linux and root only. The base is made by debootstrap (Debian 12), or is a copy of FOLDER, which it has made. What the
file's health check says is waited for; then the model answers one question, and the server must run as another user
than root. Exit code 1 if a step, the health check or the question fails.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
KEY = "a-key-for-this-run"
SECONDS = 240
QUESTION = """
import json, urllib.request
body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20, "temperature": 0.0}
headers = {"Authorization": "Bearer KEY", "Content-Type": "application/json"}
url = "http://127.0.0.1:8080/v1/chat/completions"
answer = urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=120)
print(json.load(answer)["choices"][0]["message"]["content"])
""".replace("KEY", KEY)


def steps(text: str) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile, with what follows them."""
    joined = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in joined.splitlines() if line.strip()]


class Image:
    """A root folder, and how programs run in it."""

    def __init__(self, root: Path, arguments: dict[str, str], environment: dict[str, str]) -> None:
        self.root = root
        self.arguments = arguments
        self.environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", **environment}
        self.user, self.folder = "root", "/"
        self.settings: dict[str, str] = {}

    def apply(self, name: str, rest: str) -> None:
        """Do one instruction."""
        print(f"{name} {rest}", file=sys.stderr, flush=True)
        if name == "RUN":
            subprocess.run(self.command(["sh", "-c", rest]), stdin=subprocess.DEVNULL, check=True)
        elif name == "COPY":
            *sources, target = rest.split()
            for source in sources:
                self._copy(REPO / source, self.root / target.lstrip("/"), target.endswith("/"))
        elif name in ("ARG", "ENV"):
            variable, _, value = rest.partition("=")
            value = re.sub(r"\$(\w+)", lambda found: self.environment.get(found[1], ""), value)
            self.environment[variable] = self.arguments.get(variable, value) if name == "ARG" else value
        elif name == "USER":
            self.user = rest
        elif name == "WORKDIR":
            self.folder = rest
        elif name == "HEALTHCHECK":
            self.settings[name] = rest.partition("CMD ")[2]
        else:
            self.settings[name] = rest

    def command(self, words: list[str]) -> list[str]:
        """Return the command that runs a program in the image; its mounts end with it."""
        root = shlex.quote(str(self.root))
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        inside = f"cd {shlex.quote(self.folder)} && exec {shlex.join(words)}"
        chroot = shlex.join(["chroot", f"--userspec={self._ids()}", str(self.root)])
        script = f"mount --rbind /dev {root}/dev && mount -t proc proc {root}/proc && exec {chroot} "
        return ["unshare", "--mount", "sh", "-c", script + shlex.join(["env", "-i", *variables, "sh", "-c", inside])]

    def _ids(self) -> str:
        # chroot would look for the name among the users of this machine.
        users = [line.split(":") for line in (self.root / "etc/passwd").read_text().splitlines()]
        return next(f"{each[2]}:{each[3]}" for each in users if each[0] == self.user)

    def _copy(self, source: Path, target: Path, into: bool) -> None:
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            target.mkdir(parents=True, exist_ok=True) if into else None
            shutil.copy(source, target)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, metavar="FOLDER")
    parser.add_argument("--certificates", type=Path, metavar="FILE", help="certificates that pip of the image trusts")
    parser.add_argument("--arg", action="append", default=[], metavar="NAME=VALUE", help="as --build-arg of docker")
    options = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("only root can change the root folder of a program")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "root")
        if options.base is None:
            subprocess.run(["debootstrap", "--variant=minbase", "bookworm", str(root)], stdout=sys.stderr, check=True)
        else:
            subprocess.run(["cp", "--archive", str(options.base), str(root)], check=True)
        environment = {}
        shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
        if options.certificates is not None:
            shutil.copy(options.certificates, root / "certificates.crt")
            environment["PIP_CERT"] = "/certificates.crt"
        image = Image(root, dict(each.split("=", 1) for each in options.arg), environment)
        for name, rest in steps((REPO / "Dockerfile").read_text()):
            image.apply(name, rest)
        return ask(image)


def ask(image: Image) -> int:
    """Start the server, wait for its health check, and ask it."""
    assert image.user != "root"
    image.environment["TINYCHAT_API_KEY"] = KEY
    started = time.monotonic()
    words = [*json.loads(image.settings["ENTRYPOINT"]), *json.loads(image.settings["CMD"])]
    with subprocess.Popen(image.command(words)) as server:
        try:
            check = image.command(json.loads(image.settings["HEALTHCHECK"]))
            while subprocess.run(check, stderr=subprocess.DEVNULL, check=False).returncode != 0:
                if server.poll() is not None or time.monotonic() > started + SECONDS:
                    print("the health check fails", file=sys.stderr)
                    return 1
                time.sleep(0.5)
            print(f"healthy after {time.monotonic() - started:.1f} s, as user {image.user}")
            return subprocess.run(image.command(["python3", "-c", QUESTION]), check=False).returncode
        finally:
            server.terminate()


if __name__ == "__main__":
    sys.exit(main())
