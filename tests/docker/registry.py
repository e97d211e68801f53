"""A registry of one repository for tests: enough of the distribution API for a pull and for asking a tag's digest.

https://distribution.github.io/distribution/spec/api/
"""

from __future__ import annotations

import gzip
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.docker import image

_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


class Registry:
    """Tags point to images that differ in their note. `name` is what a recipe writes, without a tag."""

    def __init__(self, port: int) -> None:
        self.name = f"127.0.0.1:{port}/lcplan/sim"
        self._tags: dict[str, str] = {}
        self._held: dict[str, tuple[str, bytes]] = {}

    def push(self, tag: str, note: str) -> str:
        """Let a tag point to the image with a note; return the image's digest."""
        root = image.root_tar(note)
        layer = gzip.compress(root, mtime=0)
        env = [f"{key}={value}" for key, value in image.ENVIRONMENT.items()]
        config = json.dumps({
            "architecture": "amd64", "os": "linux", "config": {"Env": env},
            "rootfs": {"type": "layers", "diff_ids": [_digest(root)]},
        }).encode()  # fmt: skip
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": self._keep("application/vnd.docker.container.image.v1+json", config),
            "layers": [self._keep("application/vnd.docker.image.rootfs.diff.tar.gzip", layer)],
        }
        self._tags[tag] = str(self._keep(_MANIFEST, json.dumps(manifest).encode())["digest"])
        return self._tags[tag]

    def find(self, path: str) -> tuple[str, bytes] | None:
        """Return media type and content of what a path names."""
        if path == "/v2/":
            return "application/json", b"{}"
        reference = path.rsplit("/", 1)[-1]
        return self._held.get(self._tags.get(reference, reference))

    def _keep(self, kind: str, content: bytes) -> dict[str, object]:
        self._held[_digest(content)] = kind, content
        return {"mediaType": kind, "size": len(content), "digest": _digest(content)}


@contextmanager
def serving() -> Iterator[Registry]:
    """Run a registry on a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            found = registry.find(self.path)
            kind, content = found or ("application/json", b'{"errors": [{"code": "MANIFEST_UNKNOWN"}]}')
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Docker-Content-Digest", _digest(content))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry = Registry(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
