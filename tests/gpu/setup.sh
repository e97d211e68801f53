#!/usr/bin/env bash
# Prepares a folder HOME_DIR on the GPU machine: lcplan from this tree, its dependencies from a pack, the campaign, model
# folders, and the commands `lcplan` and `vllm`.
# usage: setup.sh HOME_DIR PACKS   (PACKS holds lcplan.tar.xz.??)
set -euo pipefail
home=${1:?} packs=${2:?}
here=$(cd "$(dirname "$0")" && pwd)
tree=$(cd "$here/../.." && pwd)
mkdir -p "$home/src" "$home/bin" "$home/examples/h200/plans"
cp -a "$tree/lcplan" "$home/src/"
cp -a "$here" "$home/gpu"
cp -a "$tree/examples/h200/recipes" "$home/examples/h200/"
[ -e "$home/site" ] || "$here/unpack.sh" lcplan "$packs" "$home/site"
python3 "$here/models.py" "$tree/tests/real/vllm-0.25.1-h200/models" "$home/models"

# One place for the interpreter whatever the machine calls it, since logs name it.
ln -sfn "$(dirname "$(dirname "$(command -v python3)")")" "$home/python"
cat > "$home/bin/lcplan" <<EOF
#!/bin/sh
PYTHONPATH=$home/src:$home/site exec python3 -m lcplan "\$@"
EOF
cat > "$home/bin/vllm" <<EOF
#!/bin/sh
PYTHONPATH=$home/vllm exec python3 -u -m vllm.entrypoints.cli.main "\$@"
EOF
chmod +x "$home"/bin/*
