"""What SGLang 0.5.21 prints, all of it on stderr: start-up, failures, batches, access lines, shutdown."""

from __future__ import annotations

import os

from lcplan.sim.launch import Launch, StartFailure
from lcplan.sim.logs import NOTICE, Log
from lcplan.sim.profiles import GPU_GIB


class SglangLog(Log):
    """The log of one SGLang server."""

    def __init__(self, launch: Launch) -> None:
        super().__init__()
        self.launch = launch
        self.pid = os.getpid()

    def record(self, message: str, rank: str = "") -> None:
        """Write a record with the bracket prefix; `rank` is for example ` DP0 TP0`."""
        self.err(f"[{self.time():%Y-%m-%d %H:%M:%S}{rank}] {message}")

    def start(self) -> None:
        """Write everything up to the moment before the server listens. Raises StartFailure as the engine would fail."""
        launch = self.launch
        self.err(NOTICE)
        if "launch_server" in launch.program:
            self.err(
                "site-packages/sglang/launch_server.py:56: UserWarning: 'python -m sglang.launch_server' "
                "is still supported, "
                "but 'sglang serve' is the recommended entrypoint."
            )
        self.record(f"server_args={server_args(launch)}")
        self._context()
        if not launch.flags.get("attention-backend"):
            self.record("Attention backend not specified. Use fa3 backend by default.")
        self.pass_time(19)
        for rank in self.ranks:
            self.record("Init parallel begin.", rank)
            self.record("Init parallel ends. elapsed=3.10 s", rank)
            self.record("Memory baseline taken. mem usage=1.02 GB", rank)
        for rank in self.ranks:
            self.record(f"Load weight begin. avail mem={GPU_GIB - 1.02:.2f} GB", rank)
        self.pass_time(24)
        left = GPU_GIB - 1.02 - launch.weights_gib
        for rank in self.ranks:
            self.record(
                f"Load weight end. elapsed=24.11 s, type={launch.profile.architecture}, avail mem={left:.2f} GB, "
                f"mem usage={launch.weights_gib:.2f} GB.",
                rank,
            )
        self._cache(left)
        self.pass_time(2)
        timings = "load_weight=24.11, kv_cache_allocation=0.31, scheduler_e2e=29.70"
        self.record(
            f"Engine startup timings (s): {timings}, cuda_graph={{prefill=0.00, decode=21.33}}, tokenizer_e2e=47.20"
        )

    def listening(self) -> None:
        """Write the lines of a server that listens and is about to warm up."""
        where = f"http://{self.launch.host}:{self.launch.port}"
        self.record(f"INFO:     Started server process [{self.pid}]")
        self.record("INFO:     Waiting for application startup.")
        self.record("INFO:     Application startup complete.")
        self.record(f"INFO:     Uvicorn running on {where} (Press CTRL+C to quit)")
        self.access(self._self, "GET /model_info", "200 OK")

    def ready(self) -> None:
        """Write the lines of a warm-up that is over."""
        self.prefill(0, 1, 28, 0, 0.0, 0, 0, 1.91)
        self.access(self._self, "POST /generate", "200 OK")
        self.record("The server is fired up and ready to roll!")

    def access(self, peer: str, request: str, status: str) -> None:
        """Write an access line."""
        self.record(f'INFO:     {peer} - "{request} HTTP/1.1" {status}')

    def prefill(
        self, rank: int, new: int, tokens: int, cached: int, used: float, running: int, queued: int, rate: float
    ) -> None:
        """Write the line of a prefill batch."""
        self.record(
            f"Prefill batch, #new-seq: {new}, #new-token: {tokens}, #cached-token: {cached}, token usage: {used:.2f}, "
            f"#running-req: {running}, #queue-req: {queued}, #pending-token: 0, cuda graph: False, "
            f"input throughput (token/s): {rate:.2f}",
            self._tag(rank),
        )

    def decode(
        self, rank: int, running: int, tokens: int, used: float, rate: float, queued: int, accepted: float
    ) -> None:
        """Write the line of forty decode steps."""
        accept = f"accept len: {accepted:.2f}, accept rate: {accepted / 4:.2f}, " if accepted else ""
        self.record(
            f"Decode batch, #running-req: {running}, #token: {tokens}, token usage: {used:.2f}, "
            f"{accept}cuda graph: {not self.launch.eager}, "
            f"gen throughput (token/s): {rate:.2f}, #queue-req: {queued}",
            self._tag(rank),
        )

    def stopping(self) -> None:
        """Write what a stop by SIGTERM to the main process prints."""
        self.record("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
        self.record("Gracefully exiting... Remaining number of requests 0. Remaining requests remaining_rids=[].")
        self._killed()

    def died(self) -> None:
        """Write what is printed when the scheduler dies while serving."""
        self._crash(-9)

    def gone(self) -> None:
        """Nothing more is printed: the main process kills itself."""

    @property
    def ranks(self) -> list[str]:
        """The tags of the schedulers, in order."""
        launch = self.launch
        attention = bool(launch.flags.get("enable-dp-attention"))
        out = []
        for dp in range(1 if attention else launch.dp):
            for tp in range(launch.tp):
                part = f" DP{tp * launch.dp // launch.tp if attention else dp}" if launch.dp > 1 else ""
                part += f" TP{tp}" if launch.tp > 1 else ""
                out.append(part + (f" EP{tp}" if launch.ep else ""))
        return out

    @property
    def printers(self) -> list[str]:
        """The tags that print a capacity line: TP rank 0 of each plain DP rank; one with DP attention."""
        attention = self.launch.flags.get("enable-dp-attention")
        return self.ranks[:1] if attention else self.ranks[:: self.launch.tp]

    @property
    def _self(self) -> str:
        return f"127.0.0.1:{40000 + self.pid % 20000}"

    def _context(self) -> None:
        launch = self.launch
        if not launch.native_context or launch.context <= launch.native_context:
            return
        text = (
            f"Warning: User-specified context_length ({launch.context}) is greater than the derived context_length "
            f"({launch.native_context}). This may lead to incorrect model outputs or CUDA errors."
        )
        if launch.env.get("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "").lower() in ("1", "true"):
            self.record(text)
            return
        raise StartFailure(
            "Traceback (most recent call last):\n"
            f"ValueError: {text} To allow overriding this maximum, set the env var "
            "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1",
            1,
        )

    def _cache(self, left: float) -> None:
        launch = self.launch
        if launch.pool <= 0:
            least = 1 - left / (GPU_GIB - 1.02)
            self.fail(
                "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static="
                f"{launch.fraction}. Raise --mem-fraction-static above {least + 0.0005:.3f} (minimum viable = 1 - "
                f"available/pre = {least:.4f}). If using speculative decoding, draft weights are now counted."
            )
        dtype = (
            "torch.float8_e4m3fn"
            if str(launch.flags.get("kv-cache-dtype", "auto")).startswith("fp8")
            else "torch.bfloat16"
        )
        after = left - launch.available_gib
        for rank in self.ranks:
            if launch.profile.name == "dsv4_flash":
                ratio = float(launch.flags.get("swa-full-tokens-ratio") or 0.1)
                small = f"c4={launch.pool // 4}, c128={launch.pool // 128}"
                pools = f"full={launch.pool}, swa={int(launch.pool * ratio)}, {small}"
                self.record(f"DSV4 pool sizes: {pools}, c4_state={launch.max_seqs}, c128_state={launch.max_seqs}", rank)
            else:
                half = f"K size: {launch.available_gib / 2:.2f} GB, V size: {launch.available_gib / 2:.2f} GB"
                size = f"KV size: {launch.available_gib:.2f} GB" if launch.profile.latent else half
                self.record(f"KV Cache is allocated. dtype: {dtype}, #tokens: {launch.pool}, {size}", rank)
            self.record(f"Memory pool end. avail mem={after:.2f} GB", rank)
        graphs = 0.0 if launch.eager else 1.2
        if graphs:
            self.pass_time(21)
            for rank in self.ranks:
                self.record(
                    f"Capture target decode CUDA graph end. elapsed=21.33 s, mem usage={graphs:.2f} GB, avail "
                    f"mem={after - graphs:.2f} GB.",
                    rank,
                )
        chunk = launch.chunk if launch.chunk < 1 << 30 else -1
        for rank in self.printers:
            self.record(
                f"max_total_num_tokens={launch.pool}, chunked_prefill_size={chunk}, max_prefill_tokens=16384, "
                f"max_running_requests={launch.max_seqs}, context_len={launch.context}, "
                f"available_gpu_mem={after - graphs:.2f} GB",
                rank,
            )
        for rank in self.ranks:
            impl = "RadixCache" if launch.cached else "ChunkCache"
            self.record(
                f"Tree cache initialized: source=default impl={impl} hybrid_swa=False hybrid_ssm=False "
                "hierarchical=False streaming_wrapped=False",
                rank,
            )

    def fail(self, cause: str) -> None:
        """Write the records of a scheduler that does not start. Raises StartFailure with the engine's way to end."""
        self.record(f"Scheduler hit an exception: Traceback (most recent call last):\n{cause}\n", self.ranks[0])
        self.record("Received sigquit from a child process. It usually means the child failed.")
        self.record(f"kill_process_tree called: parent_pid={self.pid}, include_parent=True, pid={self.pid}")
        raise StartFailure("", -9)

    def _crash(self, status: int) -> None:
        name = f"scheduler_0 (pid={self.pid + 78})"
        self.record(f"Subprocess {name} crashed with exit code {status}. Triggering SIGQUIT for cleanup...")
        self.record("SIGQUIT received. signum=None, frame=None. It usually means one child failed.")
        self.record("Sleeping 5 seconds before crash diagnostics to let GPU activity settle.")
        self.record("No live scheduler processes found; skipping py-spy and CUDA coredump.")
        self._killed()

    def _killed(self) -> None:
        self.record(f"kill_process_tree called: parent_pid={self.pid}, include_parent=True, pid={self.pid}")

    def _tag(self, rank: int) -> str:
        return self.ranks[min(len(self.ranks) - 1, rank * (len(self.ranks) // max(1, self.launch.dp)))]


def server_args(launch: Launch) -> dict[str, object]:
    """The resolved arguments, as the `server_args=` record and /server_info show them (secrets are not redacted)."""
    given = {name.replace("-", "_"): value for name, value in launch.flags.items()}
    return {
        "model_path": launch.model,
        "tokenizer_path": launch.model,
        "served_model_name": launch.names[0],
        "host": launch.host,
        "port": launch.port,
        "context_length": launch.flags.get("context-length"),
        "kv_cache_dtype": "auto",
        "mem_fraction_static": launch.fraction,
        "max_running_requests": None,
        "page_size": launch.page,
        "chunked_prefill_size": launch.chunk if launch.chunk < 1 << 30 else -1,
        "tp_size": launch.tp,
        "dp_size": launch.dp,
        "pp_size": launch.pp,
        "ep_size": launch.tp if launch.ep else 1,
        "enable_metrics": False,
        "enable_cache_report": False,
        **{key: value for key, value in given.items() if key not in ("model", "served_model_name")},
    }
