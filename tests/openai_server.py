"""Any OpenAI-compatible server: counts ids, streams words, has neither /health nor /metrics. Standard library only.

Run as `python tests/openai_server.py --port PORT --model NAME [--name NAME]`; --name is what /v1/models lists.
"""

from __future__ import annotations

import argparse
import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    name = "m"

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self.reply(200, {"object": "list", "data": [{"id": self.name, "object": "model"}]})
        else:
            self.reply(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path != "/v1/completions":
            self.reply(404, {"detail": "Not Found"})
            return
        if body["model"] != self.name:
            self.reply(404, {"error": {"message": f"the model {body['model']} does not exist"}})
            return
        prompt, count = body["prompt"], body.get("max_tokens", 16)
        length = len(prompt) if isinstance(prompt, list) else len(prompt.split())
        usage = {"prompt_tokens": length, "completion_tokens": count, "total_tokens": length + count}
        if not body.get("stream"):
            self.reply(200, {"choices": [{"index": 0, "text": "a " * count}], "usage": usage})
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for at in range(count):
            time.sleep(0.01 if at else 0.05)
            reason = "length" if at == count - 1 else None
            self.event(json.dumps({"choices": [{"index": 0, "text": "a ", "finish_reason": reason}]}))
        self.event(json.dumps({"choices": [], "usage": usage}))
        self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def event(self, text: str) -> None:
        data = f"data: {text}\n\n".encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def reply(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--name")
    given = parser.parse_args()
    Handler.name = given.name or given.model
    print(f"serving {Handler.name} on {given.port}", flush=True)
    ThreadingHTTPServer(("0.0.0.0", given.port), Handler).serve_forever()
