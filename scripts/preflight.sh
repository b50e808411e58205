#!/bin/sh
# Is there what a build needs? One line for each thing that is missing, with the command that brings it; exit 1 then.
# Usage: preflight.sh [python]     CXX names another C++ compiler.
# cmake and ninja are not asked for: they come from PyPI.

python=${1:-python3}
missing=0

lacks() { # what, command
  printf 'missing: %s: %s\n' "$1" "$2" >&2
  missing=1
}

# The number in front of the first dot of a compiler's version.
major() {
  "$1" -dumpversion 2>/dev/null | cut -d. -f1
}

check_python() {
  if ! command -v "$python" >/dev/null 2>&1; then
    lacks "$python" 'sudo apt-get install python3 python3-venv python3-dev (or name another: make setup PYTHON=…)'
    return
  fi
  if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
    lacks "Python 3.10 or newer ($python is $("$python" -V 2>&1))" \
      'sudo apt-get install python3.11 python3.11-venv python3.11-dev, then make setup PYTHON=python3.11'
    return
  fi
  name=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
  "$python" -c 'import venv, ensurepip' 2>/dev/null || lacks 'the modules venv and ensurepip' "sudo apt-get install $name-venv"
  "$python" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))' \
    || lacks 'the header Python.h' "sudo apt-get install $name-dev"
}

check_compiler() {
  for compiler in ${CXX:-g++ clang++}; do
    command -v "$compiler" >/dev/null 2>&1 || continue
    version=$(major "$compiler")
    if "$compiler" --version 2>/dev/null | grep -qi clang; then least=10; else least=9; fi
    if [ "${version:-0}" -ge "$least" ] 2>/dev/null; then return; fi
    lacks "a newer C++ compiler ($compiler $version; $least is the oldest that works)" \
      'sudo apt-get install g++, or set CXX to a newer one, e.g. CXX=clang++'
    return
  done
  lacks "a C++ compiler (${CXX:-g++ 9 or newer, or clang++ 10 or newer})" 'sudo apt-get install g++'
}

check_python
check_compiler
command -v make >/dev/null 2>&1 || lacks make 'sudo apt-get install make'
exit "$missing"
