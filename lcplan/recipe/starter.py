"""The campaign that `lcplan init` writes and `lcplan demo` runs."""

from __future__ import annotations

_TEXT = """\
# A small campaign: two engines, three workloads. `lcplan plan recipes/ --runtime sim` rehearses it without a GPU.
lcplan: 1

engines:
  vllm: {{image: "vllm/vllm-openai:v0.31.0", version: 0.31.0}}
  sglang: {{image: "lmsysorg/sglang:v0.5.21", version: 0.5.21}}

defaults:
  docker: {{ipc: host, network: host, volumes: ["/models:/models:ro"]}}

models:
  flash: {{path: /models/GLM-5.3-Flash, context: 1M}}
  small: {{path: /models/Llama-3.1-8B, context: 128K}}

nodes:
  node:
    gpu: {{model: H200, memory: 141GiB, count: 8}}
    quads:
      a: {{gpus: [0, 1, 2, 3], numa: [0], ports: {a0}-{a1}}}
      b: {{gpus: [4, 5, 6, 7], numa: [1], ports: {b0}-{b1}}}

stacks:
  flash:
    model: flash
    engine: vllm
    layout: tp4
    context: 1M
    args: {{gpu-memory-utilization: 0.92, max-num-seqs: 64}}
  small:
    model: small
    engine: sglang
    layout: tp1
    context: 128K
    args: {{mem-fraction-static: 0.88, max-running-requests: 64, enable-metrics: true}}

workloads:
  needle: {{kind: needle, prompt: 100K, depths: [0.1, 0.5, 0.9], output: 256}}
  oneshot: {{kind: oneshot, prompt: 120K, output: 256}}
  decode:
    kind: grid
    output: 256
    points: [{{prompt: 8K, users: 8}}, {{prompt: 64K, users: 2}}]

experiments:
  long_context:
    stacks: [flash, small]
    workloads: [needle, oneshot, decode]
    gates: {{needle: all}}
"""


def starter(port: int) -> str:
    """Return the recipe with port blocks of ten from `port`, one per quad."""
    return _TEXT.format(a0=port, a1=port + 9, b0=port + 10, b1=port + 19)
