"""The simulated engine: a real HTTP server with the face of vLLM or SGLang, whose time is virtual.

`python -m lcplan.sim [--speed N] [--faults JSON] [--pool TOKENS] -- ENGINE ARGV...` takes the engine's own command
line; LCPLAN_SIM_SPEED, LCPLAN_SIM_FAULTS and LCPLAN_SIM_POOL say the same. `vllm-router ...` is the router of a split.

Time. Everything is computed in virtual seconds; wall time only paces, `speed` times faster. In a stream a comment
`: t=58.612000` stands before each data event: virtual seconds since this request arrived. Before the end, one such as
`: kv=0.219020` is the share of the pool in use when the first token came. A reply that is not streamed has the headers
`x-lcplan-t` (the last token) and `x-lcplan-t-first`. Every reply has `x-lcplan-simulated: 1` and `x-lcplan-speed`.

Closed loops. A request may say `x-lcplan-sent` (virtual seconds on its client's clock), `x-lcplan-users` (users of the
load) and `x-lcplan-last: 1` (this user sends no other request): see hold.py. The same load then has the same stamps.

Needles. The ids of `POST /tokenize` may be joined in any order with filler ids from 1000 on and sent as a prompt: a
sentence with a run of 5 to 12 digits is found by what the question at the end shares with it, and answered.

Faults are listed in faults.py.
"""
