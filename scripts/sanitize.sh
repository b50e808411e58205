#!/bin/sh
# Runs the host runtime under the thread sanitizer, then under the address sanitizer. CXX names another compiler.
set -eu
cd "$(dirname "$0")/.."
out=build/sanitizers
mkdir -p "$out"
for kind in thread address,undefined; do
  binary=$out/runtime_stress_$(printf %s "$kind" | tr , _)
  printf '==> runtime_stress with -fsanitize=%s\n' "$kind"
  ${CXX:-g++} -std=c++17 -O1 -g -Wall -Wextra -Werror -fsanitize="$kind" -fno-omit-frame-pointer -pthread \
    -Icsrc/include '-DACCEL_VERSION="sanitizer"' \
    scripts/runtime_stress.cc csrc/runtime/host.cc csrc/runtime/host_memory.cc csrc/runtime/host_stream.cc -o "$binary"
  # Where the kernel randomises addresses more than the sanitizer can map, it is asked not to.
  if command -v setarch >/dev/null 2>&1 && setarch -R true 2>/dev/null; then setarch -R "$binary"; else "$binary"; fi
done
