#!/bin/sh
# Runs the host runtime, the simulated device and the block pool under the thread sanitizer, then under the address sanitizer. CXX names another
# compiler; arguments choose programs (runtime_stress, sim_stress, pool_stress).
set -eu
cd "$(dirname "$0")/.."
out=build/sanitizers
mkdir -p "$out"
sources() {
  case $1 in
    runtime_stress) echo csrc/runtime/host.cc csrc/runtime/host_memory.cc csrc/runtime/host_stream.cc ;;
    sim_stress) echo csrc/sim/*.cc ;;
    pool_stress)
      for file in csrc/core/*.cc; do
        case $file in *_x86.cc) ;; *) echo "$file" ;; esac
      done ;;
    *) printf 'sanitize.sh: no program is called %s\n' "$1" >&2; exit 2 ;;
  esac
}
for program in ${*:-runtime_stress sim_stress pool_stress}; do
  files=$(sources "$program")
  for kind in thread address,undefined; do
    binary=$out/${program}_$(printf %s "$kind" | tr , _)
    printf '==> %s with -fsanitize=%s\n' "$program" "$kind"
    compile() {
      ${CXX:-g++} -std=c++17 -O1 -g -Wall -Wextra -Werror -fsanitize="$kind" -fno-sanitize-recover=all \
        -fno-omit-frame-pointer -pthread -Icsrc/include '-DACCEL_VERSION="sanitizer"' "$@"
    }
    isa=
    if [ "$program" = pool_stress ] && [ "$(uname -m)" = x86_64 ]; then  # the one unit with flags of its own
      isa=$out/sha256_x86.o
      compile -msha -msse4.1 -c csrc/core/sha256_x86.cc -o "$isa"
    fi
    # shellcheck disable=SC2086
    compile "scripts/$program.cc" $files $isa -o "$binary"
    # Where the kernel randomises addresses more than the sanitizer can map, it is asked not to.
    if command -v setarch >/dev/null 2>&1 && setarch -R true 2>/dev/null; then setarch -R "$binary"; else "$binary"; fi
  done
done
