"""What vLLM 0.31.0 prints: start-up, failures, access lines, statistics, shutdown.

Records go to stdout with a process tag, uvicorn's lines and tracebacks to stderr without one (vllm/logger.py).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from lcplan.sim.launch import Launch, StartFailure
from lcplan.sim.logs import NOTICE, Log
from lcplan.sim.profiles import GPU_GIB, OVERHEAD_GIB

ROUTES = (
    ("/health", "GET"),
    ("/load", "GET"),
    ("/ping", "GET"),
    ("/ping", "POST"),
    ("/version", "GET"),
    ("/metrics", "GET"),
    ("/tokenize", "POST"),
    ("/detokenize", "POST"),
    ("/v1/models", "GET"),
    ("/v1/completions", "POST"),
    ("/v1/chat/completions", "POST"),
)
_SEE = "See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."


class VllmLog(Log):
    """The log of one vLLM server."""

    def __init__(self, launch: Launch) -> None:
        super().__init__()
        self.launch = launch
        self.pid = os.getpid()

    def record(self, tag: str, where: str, message: str, level: str = "INFO") -> None:
        """Write a logger record of a process, e.g. tag `EngineCore_DP0`."""
        prefix = f"({tag} pid={self._pid(tag)}) {level} {self.time():%m-%d %H:%M:%S} [{where}] "
        self.out(prefix + message.replace("\n", "\r\n" + prefix))

    def start(self) -> None:
        """Write everything up to the moment before the server listens. Raises StartFailure as the engine would fail."""
        launch = self.launch
        parent = self.parent
        self.out(NOTICE)
        self.record(parent, "api_utils.py:255", f"vLLM server version {launch.version}, serving model {launch.model}")
        self.record(parent, "api_utils.py:286", f"non-default args: {_arguments(launch)}")
        if launch.dp > 1:
            servers = f"Defaulting api_server_count to data_parallel_size ({launch.dp})."
            self.record(parent, "serve.py:126", servers)
        self.pass_time(19)
        self._config()
        self._parallel()
        self._weights()
        self._cache()
        self.pass_time(14)
        for core in self.cores:
            self.record(core, "core.py:364", "init engine (profile, create kv cache, warmup model) took 31.40 s")
        if launch.dp > 1:
            self.record(
                "VLLM_DP_Coordinator", "coordinator.py:258", "All engine subscriptions received by DP coordinator"
            )
            self.record(parent, "utils.py:571", "Waiting for API servers to complete ...")
        for server in self.servers:
            self.record(server, "api_server.py:640", "Supported tasks: ['generate']")

    def listening(self) -> None:
        """Write the lines of a server that is ready."""
        for server in self.servers:
            where = f"http://{self.launch.host}:{self.launch.port}"
            self.record(server, "entry.py:136", f"Starting vLLM server on {where}")
            self.record(server, "launcher.py:69", "Available routes are:")
            for path, method in ROUTES:
                self.record(server, "launcher.py:78", f"Route: {path}, Methods: {method}")
            self.err(f"INFO:     Started server process [{self._pid(server)}]")
            self.err("INFO:     Waiting for application startup.")
            self.err("INFO:     Application startup complete.")

    def access(self, peer: str, request: str, status: str) -> None:
        """Write an access line."""
        self.err(f'INFO:     {peer} - "{request} HTTP/1.1" {status}')

    def statistics(
        self, rank: int, prompt: float, generated: float, running: int, waiting: int, used: float, hits: float
    ) -> None:
        """Write the periodic statistics of an engine; not printed with several API servers."""
        if self.launch.dp == 1:
            self.record(
                self.parent,
                "loggers.py:310",
                f"Engine {rank:03}: Avg prompt throughput: {prompt:.1f} tokens/s, Avg generation "
                f"throughput: {generated:.1f} "
                f"tokens/s, Running: {running} reqs, Waiting: {waiting} reqs, GPU KV cache usage: {100 * used:.1f}%, "
                f"Prefix cache hit rate: {100 * hits:.1f}%",
            )

    def stopping(self) -> None:
        """Write what a stop by SIGTERM prints."""
        server = self.servers[0]
        self.record(server, "launcher.py:124", "[shutdown] API server: shutdown triggered")
        self.record(server, "launcher.py:140", "[shutdown] API server: stopping engine client mode=abort timeout=0s")
        for core in self.cores:
            self.record(core, "core.py:1301", "[shutdown] EngineCore: trigger received signal=SIGTERM")
            self.record(core, "core.py:1420", "[shutdown] EngineCore: start mode=abort timeout=0s")
            text = "[shutdown] EngineCore: request processing complete; starting resource teardown"
            self.record(core, "core.py:1451", text)
            self.record(core, "core.py:1314", "[shutdown] EngineCore: exiting busy loop")
        self._client_stops("0s")
        self.record(server, "launcher.py:152", "[shutdown] API server: signalling HTTP server shutdown")
        self._server_stops()

    def died(self) -> None:
        """Write what is printed when an engine core dies while serving."""
        server = self.servers[0]
        text = "[shutdown] MPClient: engine core exited unexpectedly; starting cleanup"
        self.record(server, "core_client.py:720", text, "WARNING")
        self._client_stops("default")
        self.record(
            server,
            "async_llm.py:710",
            "AsyncLLM output_handler failed.\nTraceback (most recent call last):\n"
            "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. "
            "See stack trace (above) for the root cause.",
            "ERROR",
        )

    def gone(self) -> None:
        """Write the last lines of a server that stops by itself after its engine died."""
        self._server_stops()

    @property
    def parent(self) -> str:
        """The tag of the parent process."""
        return "APIServer" if self.launch.dp == 1 else "MainProcess"

    @property
    def servers(self) -> list[str]:
        """The tags of the API servers."""
        return [self.parent] if self.launch.dp == 1 else [f"ApiServer_{rank}" for rank in range(self.launch.dp)]

    @property
    def cores(self) -> list[str]:
        """The tags of the engine cores."""
        return ["EngineCore"] if self.launch.dp == 1 else [f"EngineCore_DP{rank}" for rank in range(self.launch.dp)]

    def _config(self) -> None:
        launch = self.launch
        too_long = launch.native_context and launch.context > launch.native_context
        self.record(self.parent, "model.py:699", f"Resolved architecture: {launch.profile.architecture}")
        if too_long and launch.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") != "1":
            raise StartFailure(
                "Traceback (most recent call last):\n"
                "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
                f"  Value error, User-specified max_model_len ({launch.context}) is greater than the "
                "derived max_model_len "
                f"(max_position_embeddings={float(launch.native_context)} or model_max_length=None in "
                "model's config.json). "
                "To allow overriding this maximum, set the env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1.",
                1,
            )
        for tag in [self.parent, *(self.servers if launch.dp > 1 else [])]:
            self.record(tag, "model.py:2109", f"Using max model len {launch.context}")
            chunked = f"Chunked prefill is enabled with max_num_batched_tokens={launch.chunk}."
            self.record(tag, "scheduler.py:309", chunked)
        dtype = str(launch.flags.get("kv-cache-dtype", "auto"))
        if dtype.startswith("fp8"):
            text = (
                "It reduces the GPU memory footprint and boosts the performance. Meanwhile, it may cause accuracy drop"
            )
            stored = f"Using {dtype} data type to store kv cache. {text} without a proper scaling factor"
            self.record(self.parent, "cache.py:357", stored)

    def _parallel(self) -> None:
        launch = self.launch
        if launch.dp > 1:
            self.record(self.parent, "utils.py:1179", f"Started DP Coordinator process (PID: {self.pid + 90})")
            self.record(self.parent, "utils.py:254", f"Started {launch.dp} API server processes")
        self.pass_time(11)
        dtype = launch.flags.get("kv-cache-dtype", "auto")
        config = (
            f"model='{launch.model}', speculative_config={launch.flags.get('speculative-config')}, "
            f"tokenizer='{launch.model}', dtype=torch.bfloat16, max_seq_len={launch.context}, "
            f"tensor_parallel_size={launch.tp}, pipeline_parallel_size={launch.pp}, data_parallel_size={launch.dp}, "
            f"decode_context_parallel_size={launch.dcp}, quantization=None, enforce_eager={launch.eager}, "
            f"kv_cache_dtype={dtype}, "
            f"seed=0, served_model_name={launch.names[0]}, enable_prefix_caching={launch.cached}, "
            "enable_chunked_prefill=True"
        )
        self.record(
            self.cores[0], "core.py:129", f"Initializing a V1 LLM engine (v{launch.version}) with config: {config}"
        )
        if launch.dp > 1 and launch.profile.moe and not launch.ep:
            text = "Detected DP deployment with no --enable-expert-parallel. "
            text += "Falling back to AllGather+ReduceScatter dispatch/combine."
            self.record(self.workers[0], "all2all_utils.py:205", text)
        backend = launch.flags.get("attention-backend")
        if backend:
            for worker in self.workers:
                self.record(worker, "cuda.py:466", f"Using AttentionBackendEnum.{backend} backend.")
            return
        names = ["FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION"]
        if launch.profile.latent:
            generic = launch.profile.name == "generic"
            names = ["FLASH_ATTN_MLA", "FLASHMLA"] if generic else ["FLASH_ATTN_MLA_SPARSE", "FLASHMLA_SPARSE"]
        text = f"Using {names[0]} attention backend out of potential backends: {names}."
        self.record(self.workers[0], "cuda.py:527", text)

    def _weights(self) -> None:
        self.pass_time(38)
        weights = f"{round(self.launch.weights_gib, 2)} GiB memory and 41.883012 seconds"
        self.record(self.workers[0], "default_loader.py:485", "Loading weights took 38.71 seconds")
        for worker in self.workers:
            self.record(worker, "model_runner.py:408", f"Model loading took {weights}")
        self.pass_time(9)

    def _cache(self) -> None:
        launch = self.launch
        available = round(launch.available_gib, 2)
        if launch.flags.get("kv-cache-memory-bytes"):
            text = f"Initial free memory 138.5 GiB, reserved {available} GiB memory for KV Cache as specified by "
            text += "kv_cache_memory_bytes config and skipped memory profiling."
            self.record(self.workers[0], "gpu_worker.py:591", text)
        else:
            self.record(self.workers[0], "gpu_worker.py:692", f"Available KV cache memory: {available} GiB")
        if launch.pool <= 0:
            self.fail(
                "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
                f"initializing the engine. {_SEE}"
            )
        if launch.pool < launch.context:
            needed = launch.available_gib * launch.context / launch.pool
            self.fail(
                f"ValueError: To serve at least one request with the model's max seq len ({launch.context}), "
                f"({round(needed, 2)} GiB KV cache is needed, which is larger than the available KV cache memory "
                f"({round(launch.available_gib, 2)} GiB). Based on the available memory, the estimated "
                "maximum model length "
                f"is {launch.pool // 16 * 16}. Try increasing `gpu_memory_utilization` or decreasing "
                "`max_model_len` when "
                f"initializing the engine. {_SEE}"
            )
        for core in self.cores:
            self._fitted(core)
            size = f"GPU KV cache size: {launch.pool:,} tokens"
            fits = f"Maximum concurrency for {launch.context:,} tokens per request: {launch.pool / launch.context:.2f}x"
            self.record(core, "kv_cache_utils.py:2464", f"{size}, {fits}")
        for worker in () if launch.eager else self.workers:
            self.record(worker, "model_runner.py:1088", "Graph capturing finished in 12 secs, took 0.84 GiB")
        for worker in self.workers:
            self.record(worker, "gpu_worker.py:925", self._memory())

    def _fitted(self, core: str) -> None:
        """The line of `--max-model-len auto`."""
        launch = self.launch
        if launch.flags.get("max-model-len") not in (-1, "auto"):
            return
        whole = launch.native_context or launch.profile.context
        text = f"full model context length {whole} fits in available GPU memory"
        if launch.context < whole:
            room = f"{round(launch.available_gib, 2)} GiB available for KV cache"
            text = f"reduced from {whole} to {launch.context} to fit in available GPU memory ({room})"
        self.record(core, "kv_cache_utils.py:2631", f"Auto-fit max_model_len: {text}")

    def _memory(self) -> str:
        launch = self.launch
        asked = round(launch.fraction * GPU_GIB, 2)
        consumed = round(launch.weights_gib + OVERHEAD_GIB / 2, 2)
        kept = int(launch.available_gib * 2**30)
        graphs = 0.0 if launch.eager else 0.84
        return (
            f"Free memory on device (138.87/{GPU_GIB} GiB) on startup. Desired GPU memory utilization is "
            f"({launch.fraction}, "
            f"{asked} GiB). Actual usage is {consumed} GiB for consumed memory (weights + non-torch), "
            "0.44 GiB for peak "
            f"activation, and {graphs} GiB for CUDAGraph memory. Replace gpu_memory_utilization config with "
            f"`--kv-cache-memory={kept}` ({round(kept / 2**30, 2)} GiB) to fit into requested memory, or "
            f"`--kv-cache-memory={kept + 2**33}` ({round(kept / 2**30 + 8, 2)} GiB) to fully utilize gpu "
            "memory. Current kv "
            f"cache memory in use is {round(launch.available_gib, 2)} GiB."
        )

    def fail(self, cause: str, status: int = 1) -> None:
        """Write the records of an engine core that does not start. Raises StartFailure."""
        trace = f"Traceback (most recent call last):\n{cause}"
        self.record(self.cores[0], "core.py:1190", f"EngineCore failed to start.\n{trace}", "ERROR")
        self.err(f"Process {self.cores[0]}:\n{trace}")
        root = "RuntimeError: Engine core initialization failed. See root cause above."
        raise StartFailure(
            f"Traceback (most recent call last):\n{root} Failed core proc(s): {{'{self.cores[0]}': 1}}", status
        )

    @property
    def workers(self) -> list[str]:
        """The tags of the GPU workers; a lone one lives in the engine core."""
        launch = self.launch
        if launch.tp * launch.pp * launch.dp == 1:
            return ["EngineCore"]
        grouped = launch.dp > 1 and launch.profile.moe  # a dense DP rank is an engine of its own and shows no _DPn
        out = []
        for dp in range(launch.dp):
            for pp in range(launch.pp):
                for tp in range(launch.tp):
                    parts = [f"_DP{dp}"] if grouped else []
                    parts += [f"_PP{pp}"] if launch.pp > 1 else []
                    parts += [f"_TP{tp}"] if launch.tp > 1 else []
                    parts += [f"_DCP{tp % launch.dcp}"] if launch.dcp > 1 else []
                    parts += [f"_EP{dp * launch.tp + tp}"] if launch.ep else []
                    out.append("Worker" + "".join(parts))
        return out

    def _client_stops(self, timeout: str) -> None:
        server = self.servers[0]
        for step in (f"start timeout={timeout}", "stopping engine manager", "engine manager stopped"):
            self.record(server, "core_client.py:670", f"[shutdown] MPClient: {step}")
        self.record(server, "core_client.py:675", "[shutdown] MPClient: cleaning up background resources")
        self.record(server, "core_client.py:677", "[shutdown] MPClient: complete")

    def _server_stops(self) -> None:
        for server in self.servers:
            self.err("INFO:     Shutting down")
            self.err("INFO:     Waiting for application shutdown.")
            self.err("INFO:     Application shutdown complete.")
            self.err(f"INFO:     Finished server process [{self._pid(server)}]")

    def _pid(self, tag: str) -> int:
        """Made-up ids for the processes that a real server would have, except its own."""
        if tag in ("APIServer", "MainProcess"):
            return self.pid
        places: Mapping[str, int] = {
            name: at for at, name in enumerate([*self.cores, *self.workers, *self.servers, "VLLM_DP_Coordinator"])
        }
        return self.pid + 200 + places.get(tag, 0)


def _arguments(launch: Launch) -> dict[str, Any]:
    """The dict behind `non-default args`; secrets are redacted (vllm/entrypoints/serve/utils/api_utils.py)."""
    out: dict[str, Any] = {"model_tag": launch.model, "model": launch.model}
    for name, value in launch.flags.items():
        key = name.replace("-", "_")
        if key in ("api_key", "hf_token"):
            value = "***"
        elif isinstance(value, str) and value.startswith("{"):
            value = json.loads(value)
        if not (key == "port" and value == 8000) and not (key == "gpu_memory_utilization" and value == 0.92):
            out[key] = value
    return out
