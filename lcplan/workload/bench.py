"""`vllm bench serve` as a process with a deadline, and its result file read back request by request.

The format is that of vLLM 0.25.1 and 0.31.0 with `--save-detailed` (vllm/benchmarks/serve.py). The tool exits with 0
even when every request failed, so only the file counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import shlex
import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from lcplan.engine import dialect
from lcplan.workload.exchange import Record, Request
from lcplan.workload.job import Job
from lcplan.workload.measurement import Measurement
from lcplan.workload.validity import CannotMeasure, Reason

_START_S = 600.0  # importing vLLM and loading a tokenizer from cold storage
_SLOWEST_PREFILL = 2_000.0  # tokens/s of the whole engine
_SLOWEST_TOKEN_S = 0.5
_STOP_S = 2.0
_DETAILS = ("input_lens", "output_lens", "ttfts", "itls", "errors")
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)


@dataclass(frozen=True, slots=True)
class Point:
    """What one run of the tool sends."""

    prompt: int
    output: int
    users: int | None
    requests: int
    rate: float | None = None

    @property
    def load(self) -> str:
        """The load in words."""
        return f"{self.users} at once" if self.rate is None else f"{self.rate:g} per second"

    @property
    def deadline_s(self) -> float:
        """Seconds after which the tool hangs: start-up plus the work at the slowest speeds that make sense."""
        rounds = 1 if self.users is None else -(-self.requests // self.users)
        arrivals = self.requests / self.rate if self.rate is not None else 0.0
        work = self.requests * self.prompt / _SLOWEST_PREFILL + rounds * self.output * _SLOWEST_TOKEN_S
        return _START_S + arrivals + work


async def run(m: Measurement, prefix: Sequence[str], point: Point) -> list[Record]:
    """Run the tool and return a record a request. Raises CannotMeasure, OSError.

    Its command, its output and its result file stay in `bench/`.
    """
    if shutil.which(prefix[0]) is None:
        raise CannotMeasure(Reason.BENCH_MISSING, f"'{prefix[0]}' is not found")
    folder = m.job.folder / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    result = folder / f"{m.cell.name}.json"
    result.unlink(missing_ok=True)
    path = m.job.tokenizer or await _model_path(m)
    command = [*prefix, *arguments(m.job, point, path, m.identity.seed(), result)]
    (folder / f"{m.cell.name}.sh").write_text(shlex.join(command) + "\n")
    status = await _execute(command, folder / f"{m.cell.name}.log", point.deadline_s)
    try:
        return read(json.loads(result.read_text()), point)
    except (OSError, ValueError) as error:
        raise CannotMeasure(Reason.BENCH_FAILED, f"exit status {status}, {error}") from error


def arguments(job: Job, point: Point, tokenizer: str, seed: int, result: Path) -> list[str]:
    """Return the flags of one run. The seed is the point's own: equal seeds send equal prompts at every length."""
    flags: Mapping[str, str | int] = {
        "--backend": "openai",
        "--base-url": job.base_url,
        "--endpoint": "/v1/completions",
        "--model": job.served,
        "--tokenizer": tokenizer,
        "--dataset-name": "random",
        "--random-input-len": point.prompt,
        "--random-output-len": point.output,
        "--num-prompts": point.requests,
        **({"--max-concurrency": point.users} if point.users is not None else {}),
        **({"--request-rate": f"{point.rate:g}"} if point.rate is not None else {}),
        "--seed": seed,
        "--temperature": 0,
        "--percentile-metrics": "ttft,tpot,itl,e2el",
        "--metric-percentiles": "50,90,99",
        "--result-dir": str(result.parent),
        "--result-filename": result.name,
    }
    switches = ["--ignore-eos", "--save-result", "--save-detailed", "--disable-tqdm"]
    return [word for flag, value in flags.items() for word in (flag, str(value))] + switches


def read(result: Any, point: Point) -> list[Record]:
    """Return the records of a result file. Raises ValueError when it lacks the arrays of `--save-detailed`."""
    if not isinstance(result, Mapping) or not all(isinstance(result.get(name), list) for name in _DETAILS):
        raise ValueError("the result has no per-request details")
    count = len(result["ttfts"])
    if count != point.requests or any(len(result[name]) != count for name in _DETAILS):
        raise ValueError(f"the result tells of {count} requests, {point.requests} were to be sent")
    starts = result.get("start_times") or [0.0] * count
    return [_record(result, index, starts[index] - min(starts), point) for index in range(count)]


def _record(result: Mapping[str, Any], index: int, start_s: float, point: Point) -> Record:
    made, error = result["output_lens"][index], result["errors"][index]
    request = Request(index, index % (point.users or 1), point.prompt, point.output, b"", point.prompt)
    sent = round(start_s * 1e9)
    record = Record(request, sent, sent, prompt_tokens=result["input_lens"][index], output_tokens=made)
    if error or not made:
        record.error = (str(error).strip().splitlines() or ["no token came"])[-1][:300]
        return record
    stamps = accumulate(result["itls"][index], initial=start_s + result["ttfts"][index])
    record.chunks = [round(at * 1e9) for at in stamps]
    record.first, record.last = record.chunks[0], record.chunks[-1]
    return record


async def _model_path(m: Measurement) -> str:
    """Return where the tool finds the tokenizer: the model path that the server tells, else the served name."""
    for path in dialect.DIALECTS[m.job.engine].model_path:
        try:
            status, text = await m.session.client.get(m.job.engine_url + path)
            found = dialect.model_path(json.loads(text)) if status == 200 else None
        except (OSError, ValueError):
            continue
        if found:
            return found
    return m.job.served


async def _execute(command: Sequence[str], log: Path, deadline_s: float) -> int:
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=asyncio.subprocess.STDOUT,
            env=os.environ | {"NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"},
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
    try:
        async with asyncio.timeout(deadline_s):
            return await process.wait()
    except TimeoutError as error:
        raise CannotMeasure(Reason.BENCH_TIMEOUT, f"{deadline_s:.0f} s were allowed") from error
    finally:
        await _stop(process)


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Stop the tool and its children; a tool in a container hears SIGTERM only, so that comes first."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_S):
                await process.wait()


_libc = ctypes.CDLL(None)


def _die_with_parent() -> None:
    """Ask the kernel for SIGTERM when this process dies, whatever killed it: a killed apply sends nothing more."""
    _libc.prctl(_DIE_WITH_PARENT, signal.SIGTERM)
