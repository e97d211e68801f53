#!/usr/bin/env bash
# Packs an engine, or lcplan's dependencies, for a GPU machine that has Python 3.12, torch 2.11 for CUDA 13 and no registry.
# The pack is a folder for PYTHONPATH, as a tar in parts small enough to be carried one after the other.
# usage: pack.sh vllm|sglang|lcplan OUT_DIR [PART_SIZE]
set -euo pipefail
name=${1:?} out=${2:?} size=${3:-58M}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

target=(--no-deps --only-binary=:all: --python-version 3.12 --implementation cp)
for tag in manylinux_2_{39,35,34,31,28,27,26,24,17,12,5} manylinux2014 manylinux2010 manylinux1; do
  target+=(--platform "${tag}_x86_64")
done

python3 -m pip download -q "${target[@]}" -d "$work/wheels" -r "$here/$name.txt"
mkdir -p "$work/site"
# Left out: kernels for other GPUs or of attention backends that the campaign does not use, static libraries, translations.
without=('*.a' '*_vllm_fa2_C.abi3.so' 'vllm/vllm-rs' 'pycountry/locales/*' 'sgl_kernel/flash_ops.abi3.so' 'sgl_kernel/sm100/*')
for wheel in "$work"/wheels/*.whl; do
  unzip -qo "$wheel" -d "$work/site" -x "${without[@]}" 2> /dev/null || [ $? -eq 11 ]
done
for data in "$work"/site/*.data/{purelib,platlib}; do
  if [ -d "$data" ]; then cp -a "$data/." "$work/site/"; fi
done
rm -rf "$work"/site/*.data
# sgl_kernel imports this module by name; its kernels are the ones left out.
[ "$name" != sglang ] || touch "$work/site/sgl_kernel/flash_ops.py"

mkdir -p "$out"
# The pack that brings the reader of zstd can't be zstd.
if [ "$name" = lcplan ]; then form=xz; pack=(xz -T2 -6); else form=zst; pack=(zstd -q -T0 -9 --long=27); fi
tar -C "$work/site" -cf - . | "${pack[@]}" | split -b "$size" -d - "$out/$name.tar.$form."
ls -l "$out"
