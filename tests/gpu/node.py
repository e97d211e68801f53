"""Declares a detected machine with one quad a GPU, so that small models run side by side.

usage: lcplan topology detect --json | python3 node.py NAME > node.yaml
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

FIRST_PORT, PORTS = 8000, 100


def declare(name: str, seen: dict[str, Any], cpus: int) -> str:
    """Return a recipe file: every GPU is a quad with its share of the CPUs."""
    gpus, share = seen["gpus"], cpus // len(seen["gpus"])
    memory = min(gpu["memory_gib"] for gpu in gpus)
    lines = [
        "# Made of `lcplan topology detect --json`, one quad a GPU.",
        "lcplan: 1",
        "",
        "nodes:",
        f"  {name}:",
        f"    gpu: {{model: {gpus[0]['name']}, memory: {memory}GiB, count: {len(gpus)}}}",
        f"    islands: [{[gpu['index'] for gpu in gpus]}]",
        "    quads:",
    ]
    for at, gpu in enumerate(gpus):
        port = FIRST_PORT + at * PORTS
        lines += [
            f"      {'abcdefgh'[at]}:",
            f"        gpus: [{gpu['index']}]",
            f"        numa: {gpu['numa'] or [0]}",
            f'        cpus: "{at * share}-{(at + 1) * share - 1}"',
            f"        ports: {port}-{port + PORTS - 1}",
            f"        uuids: [{gpu['uuid']}]",
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(declare(sys.argv[1], json.load(sys.stdin), os.cpu_count() or 1))
