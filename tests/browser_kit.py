"""A headless Chromium for tests, driven by chromedriver over W3C WebDriver (https://www.w3.org/TR/webdriver2/)."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
_ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-component-update",
    "--disable-background-networking",
]

needs_browser = pytest.mark.skipif(
    not (shutil.which("chromium") and shutil.which("chromedriver")), reason="tests/browser/install.sh installs Chromium"
)


class Browser:
    """One session of a browser."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def open(self, file: Path) -> None:
        """Load a file."""
        self._post("url", url=file.resolve().as_uri())

    def click(self, css: str) -> None:
        """Click the first element that a selector names, as a person would: it must be seen."""
        found = self._post("element", using="css selector", value=css)
        self._post(f"element/{found[_ELEMENT]}/click")

    def evaluate(self, script: str) -> Any:
        """Return what a script returns."""
        return self._post("execute/sync", script=script, args=[])

    def _post(self, path: str, **body: Any) -> Any:
        answer = self._client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()["value"]


@contextmanager
def browser(profile: Path, width: int = 1200, dark: bool = False) -> Iterator[Browser]:
    """Run a browser with a profile folder of its own inside a `with` block."""
    with subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True) as driver:
        try:
            assert driver.stdout is not None
            port = next(found[1] for line in driver.stdout if (found := re.search(r"successfully on port (\d+)", line)))
            scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
            arguments = [*_ARGUMENTS, scheme, f"--window-size={width},900", f"--user-data-dir={profile}"]
            options = {"browserName": "chrome", "goog:chromeOptions": {"args": arguments}}
            with httpx.Client(base_url=f"http://127.0.0.1:{port}/", timeout=60) as client:
                made = client.post("session", json={"capabilities": {"alwaysMatch": options}})
                assert made.status_code == 200, made.text
                session = f"http://127.0.0.1:{port}/session/{made.json()['value']['sessionId']}"
                client.base_url = httpx.URL(session + "/")
                try:
                    yield Browser(client)
                finally:
                    client.delete(session)
        finally:
            left = psutil.Process(driver.pid).children(recursive=True)
            driver.terminate()
            for process in psutil.wait_procs(left, timeout=5)[1]:
                process.kill()
