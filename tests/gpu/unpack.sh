#!/usr/bin/env bash
# Joins the parts of a pack in FOLDER, unpacks them to TARGET and compiles the Python files, which a first start would do.
# usage: unpack.sh NAME FOLDER TARGET   (after lcplan, with its folder on PYTHONPATH)
set -euo pipefail
name=${1:?} folder=${2:?} target=${3:?}
mkdir -p "$target.part"
zstd='import sys, zstandard as z; z.ZstdDecompressor(max_window_size=2**27).copy_stream(sys.stdin.buffer, sys.stdout.buffer)'
if [ "$name" = lcplan ]; then form=xz; read=(xz -dc); else form=zst; read=(python3 -c "$zstd"); fi
cat "$folder/$name.tar.$form".?? | "${read[@]}" | tar -xf - -C "$target.part"

# flashinfer imports a package for multiplication across GPUs that such a machine lacks; nothing here uses it.
guarded=$target.part/flashinfer/comm/all_gather_matmul/__init__.py
if [ -e "$guarded" ]; then
  { echo 'try:'; sed 's/^\(.\)/    \1/' "$guarded"; printf 'except Exception:\n    all_gather_matmul = None\n'; } > "$guarded.new"
  mv "$guarded.new" "$guarded"
fi
mv "$target.part" "$target"
python3 -m compileall -q -j 0 "$target" > /dev/null 2>&1 || true
