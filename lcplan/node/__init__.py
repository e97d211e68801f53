"""The machine: GPUs, NVLink islands, sockets, NUMA nodes and quads, read from the tables that its tools print."""
