"""`python -m lcplan.sim [--speed N] [--faults JSON] -- vllm serve MODEL ...`."""

import sys

from lcplan.sim.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
