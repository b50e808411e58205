#!/bin/sh
# Runs the CPU kernels here, on an emulated x86-64 without AVX, and on an emulated AArch64, and compares every digest:
# the same bits on each, and no instruction that the machine lacks. Exit 2 when a tool is missing.
set -eu
cd "$(dirname "$0")/.."
out=build/emulate
mkdir -p "$out"
for tool in g++ aarch64-linux-gnu-g++ qemu-x86_64 qemu-aarch64; do
  command -v "$tool" >/dev/null || {
    echo "$tool is missing: apt-get install g++ g++-aarch64-linux-gnu qemu-user" >&2
    exit 2
  }
done
if [ "$(uname -m)" != x86_64 ]; then
  echo "this comparison is made on x86-64; this machine is $(uname -m)" >&2
  exit 2
fi
flags='-std=c++17 -O2 -ffp-contract=off -pthread -Icsrc/include'
common='isa logits logprobs pack sample scratch step thread_pool kernels_generic'

objects=
for unit in $common kernels_avx2 kernels_avx512; do
  isa=
  [ $unit = kernels_avx2 ] && isa='-mavx2 -mfma -mf16c'
  [ $unit = kernels_avx512 ] && isa='-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c'
  g++ $flags $isa -c csrc/cpu/$unit.cc -o "$out/$unit.o"
  objects="$objects $out/$unit.o"
done
g++ $flags scripts/kernel_digest.cc $objects -o "$out/digest_x86"
sources=
for unit in $common; do sources="$sources csrc/cpu/$unit.cc"; done
aarch64-linux-gnu-g++ $flags -static scripts/kernel_digest.cc $sources -o "$out/digest_aarch64"

run() {
  printf '==> %s\n' "$1"
  name=$2
  shift 2
  "$@" >"$out/$name.txt"
}
run 'this machine, every instruction set it has' native "$out/digest_x86"
run 'x86-64 of 2008: no AVX, no FMA (qemu)' nehalem qemu-x86_64 -cpu Nehalem "$out/digest_x86"
run 'AArch64 (qemu)' aarch64 qemu-aarch64 "$out/digest_aarch64"
for other in nehalem aarch64; do
  diff "$out/native.txt" "$out/$other.txt" || {
    echo "$other computes other bits" >&2
    exit 1
  }
done
printf '%s kernels, the same bits on all three\n' "$(wc -l <"$out/native.txt")"
