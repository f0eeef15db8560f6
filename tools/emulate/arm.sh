#!/usr/bin/env bash
# arm.sh [FOLDER]: build the native tests for ARMv8 and run them under QEMU, on the ISAs `scalar` and
# `neon`; exit status 1 if one fails. Needs Debian's g++-aarch64-linux-gnu and qemu-user-static.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=${1:-build/emulate-arm}

cmake -S . -B "$work" -G "${GENERATOR:-Ninja}" -DCMAKE_SYSTEM_NAME=Linux \
    -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ \
    -DCMAKE_EXE_LINKER_FLAGS=-static -DPENSTOCK_PYTHON=OFF -DPENSTOCK_TESTS=ON \
    -DPENSTOCK_WERROR=ON -DCMAKE_CROSSCOMPILING_EMULATOR="$(command -v qemu-aarch64-static)" >/dev/null
cmake --build "$work" --parallel "$(nproc)" >/dev/null
ctest --test-dir "$work" --output-on-failure
