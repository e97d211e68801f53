"""`examples/ci`: the review script against a forge's comment API, and the two files that call it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests import kit
from tests.kit import REPO

CI = REPO / "examples" / "ci"
pytestmark = pytest.mark.skipif(not (shutil.which("curl") and shutil.which("bash")), reason="needs bash and curl")


class Forge(ThreadingHTTPServer):
    """The comment API of GitHub and GitLab, as far as the script uses it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.comments: list[dict[str, Any]] = []
        self.calls: list[tuple[str, str]] = []
        self.tokens: set[str] = set()
        self.broken = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    """Lists comments in pages of a hundred, adds and changes them."""

    server: Forge

    def do_GET(self) -> None:
        page = int(self.path.rpartition("page=")[2])
        self._answer(self.server.comments[100 * (page - 1) : 100 * page])

    def do_POST(self) -> None:
        made = {"id": len(self.server.comments) + 1, "body": self._body()}
        self.server.comments.append(made)
        self._answer(made)

    def do_PATCH(self) -> None:
        wanted = int(self.path.rpartition("/")[2])
        made = next(one for one in self.server.comments if one["id"] == wanted)
        made["body"] = self._body()
        self._answer(made)

    do_PUT = do_PATCH

    def log_message(self, *words: Any) -> None:
        pass

    def _body(self) -> str:
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        return str(json.loads(raw)["body"])

    def _answer(self, value: Any) -> None:
        self.server.calls.append((self.command, self.path.partition("?")[0]))
        self.server.tokens |= {self.headers.get("Authorization") or "", self.headers.get("PRIVATE-TOKEN") or ""}
        raw = json.dumps(value).encode()
        self.send_response(403 if self.server.broken else 200)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


@pytest.fixture
def forge() -> Iterator[Forge]:
    with Forge() as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def folder(tmp_path: Path, port: int) -> Path:
    kit.campaign(tmp_path / "recipes", kit.small(port))
    return tmp_path


def review(folder: Path, forge: Forge | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    lcplan = folder / "bin" / "lcplan"
    lcplan.parent.mkdir(exist_ok=True)
    lcplan.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m lcplan "$@"\n')
    lcplan.chmod(0o755)
    path = f"{lcplan.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    at = {"FORGE": "github", "TOKEN": "t0ken", "PROJECT": "team/campaign", "CHANGE": "7"} if forge else {}
    at |= {"API_URL": forge.url} if forge else {}
    return subprocess.run(
        ["bash", CI / "review.sh"], cwd=folder, text=True, capture_output=True, timeout=120,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(REPO), **at, **env},
    )  # fmt: skip


def test_one_comment_is_written_and_then_kept_up_to_date(folder: Path, forge: Forge, port: int) -> None:
    forge.comments = [{"id": number, "body": "looks good"} for number in range(1, 131)]
    ran = review(folder, forge)
    assert ran.returncode == 0, ran.stderr
    assert len(forge.comments) == 131
    assert forge.comments[130]["body"].startswith("<!-- lcplan review -->\n### lcplan: plan ")
    first = forge.comments[130]["body"]
    kit.campaign(folder / "recipes", kit.small(port, users=4))
    assert review(folder, forge).returncode == 0
    assert len(forge.comments) == 131 and forge.comments[130]["body"] not in ("looks good", first)
    assert forge.calls[-1] == ("PATCH", "/repos/team/campaign/issues/comments/131")
    assert forge.tokens == {"Bearer t0ken", ""}


def test_gitlab_has_other_words_for_it(folder: Path, forge: Forge) -> None:
    for _ in range(2):
        assert review(folder, forge, FORGE="gitlab", PROJECT="42").returncode == 0
    notes = "/projects/42/merge_requests/7/notes"
    assert forge.calls == [("GET", notes), ("POST", notes), ("GET", notes), ("PUT", f"{notes}/1")]
    assert forge.tokens == {"t0ken", ""}


def test_a_plan_that_breaks_the_policy_fails_after_its_comment(folder: Path, forge: Forge, port: int) -> None:
    kit.campaign(folder / "recipes", kit.small(port, extra="policy: {gpu_hours: 0.001}"))
    ran = review(folder, forge)
    assert ran.returncode == 1 and "error[policy-gpu-hours]" in ran.stderr
    assert "apply refuses this plan: the plan takes" in forge.comments[0]["body"]


def test_recipes_that_are_wrong_are_told_with_their_places(folder: Path, forge: Forge) -> None:
    (folder / "recipes/campaign.yaml").write_text("lcplan: 1\nstack: {}\n")
    assert review(folder, forge).returncode == 1
    body = forge.comments[0]["body"]
    assert "cannot be planned" in body and "campaign.yaml:2:1: error[unknown-key]" in body


def test_what_differs_from_the_target_branch_is_shown(folder: Path, port: int) -> None:
    assert kit.lcplan("plan", "recipes", "-o", "base.json", cwd=folder).code == 0
    kit.campaign(folder / "recipes", kit.small(port, seqs=32))
    ran = review(folder, BASE_PLAN="base.json")
    assert ran.returncode == 0
    assert "#### Against the target branch" in ran.stdout and "64 -> 32" in ran.stdout.partition("Against")[2]


def test_a_forge_that_refuses_fails_the_job(folder: Path, forge: Forge) -> None:
    forge.broken = True
    assert review(folder, forge).returncode != 0
    assert review(folder, forge, FORGE="other").returncode != 0


@pytest.mark.parametrize("name", ["github.yml", "gitlab.yml"])
def test_both_forges_give_the_script_what_it_asks_for(name: str) -> None:
    text = (CI / name).read_text()
    content = YAML(typ="safe").load(text)
    if name == "github.yml":
        [step] = [one for one in content["jobs"]["review"]["steps"] if one.get("run") == "ci/review.sh"]
        given = set(step["env"])
    else:
        assert "ci/review.sh" in content["lcplan"]["script"]
        given = set(content["lcplan"]["variables"])
    assert {"FORGE", "API_URL", "TOKEN", "PROJECT", "CHANGE", "BASE_PLAN"} <= given
