"""A stand-in for `vllm bench serve`: takes its flags, sends nothing, writes the result that a JSON of options asks for.

Usage: fake_bench.py OPTIONS FLAGS...; the flags it was given are kept in the result as `argv`.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from pathlib import Path

options, flags = json.loads(sys.argv[1]), sys.argv[2:]
given = dict(itertools.pairwise(flags))
count, prompt, output = (int(given[f]) for f in ("--num-prompts", "--random-input-len", "--random-output-len"))
failed = options.get("failed", 0)
time.sleep(options.get("seconds", 0))
if options.get("hang"):
    time.sleep(600)
good = count - failed
result = {
    "completed": good,
    "failed": failed,
    "input_lens": [prompt + options.get("longer", 0)] * count,
    "output_lens": [output] * good + [0] * failed,
    "ttfts": [0.5] * good + [0.0] * failed,
    "itls": [[0.02] * (output - 1)] * good + [[]] * failed,
    "start_times": [100.0 + i for i in range(count)],
    "errors": [""] * good + ["Traceback ...\nClientError: Service Unavailable"] * failed,
    "argv": flags,
}
(Path(given["--result-dir"]) / given["--result-filename"]).write_text(json.dumps(result))
