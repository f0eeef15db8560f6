#!/usr/bin/env bash
# Everything a GPU machine is asked, in sections that each end within their time and leave what they
# found: a table on the screen, results.jsonl (and logs) in $OUT.
#
#   bench/device/run.sh [--rehearse] [SECTION ...]        without sections: the first call's
#
#   build       the Python module and, where csrc/cuda is, the CUDA library, for this machine (3 min)
#   tests       pytest -m gpu (4 min); a failure is kept as it happens
#   limits      copy bandwidth and the rate of a bfloat16 product: the floors of everything else
#   ops         each op of a decode step beside its floor (3 min); ops-triton: without the library
#   products    which kernel makes each product fastest; writes linear.json (3 min)
#   qwen3-8b    the engine on a checkpoint of that shape: start, prompts, decode, whole runs (6 min)
#               (qwen3-8b-triton: without the CUDA library)
#   qwen3-8b-fp8  the same with layers in 8 bits (6 min)
#   qwen3-30b-a3b  the same of a mixture of experts, of 16 of its 48 layers (5 min)
#   experts     a layer's experts, in bfloat16 and in 8 bits, and their choice, by number of tokens,
#               beside their floor (4 min)
#   llama-8b    the same without whole runs (4 min)      qwen3-0.6b  the same in small (3 min)
#   profile     kernels of decode steps, and the share of time in which the GPU idles (3 min)
#   invariance  does an answer depend on its neighbours, and what does it cost that not (4 min)
#   adapters    0, 8 and 16 LoRA adapters in a batch of 32, beside their bytes; steps while one is
#               loaded (4 min)
#   peers       transformers on the same checkpoint (4 min)
#
# All sections together end within $DEADLINE seconds, 570 unless it says otherwise: what comes last is
# cut short. With 10 minutes a command: first `build tests limits ops`, then `build qwen3-8b profile`, then
# `build products llama-8b qwen3-0.6b`, `build adapters invariance`, `build qwen3-30b-a3b` or
# `build experts peers`. A machine that was kept warm has
# its build still; a fresh one needs `build` again.
#
# No network is needed. Python packages that such a machine lacks travel as wheels in .whl/ at the
# root of the repository (ignored by git, to be carried along): msgspec and llguidance,
#
#   python3 -m pip download --no-deps --only-binary=:all: --python-version 3.12 \
#     --implementation cp --abi cp312 --abi abi3 --platform manylinux_2_17_x86_64 \
#     --platform manylinux2014_x86_64 --platform manylinux_2_31_x86_64 -d .whl \
#     msgspec llguidance==1.9.1
#
# and, to save its build of some minutes on a fresh machine, the wheel of the CUDA library:
#
#   make wheel CUDA=13 && cp dist/penstock_cuda13-*.whl .whl/
#
# numpy, torch, triton, safetensors, tokenizers, transformers, pytest, pytest-timeout, hypothesis,
# cmake, ninja and pybind11 are expected to be there. --rehearse runs every section on the CPU in small sizes.
set -uo pipefail
cd "$(dirname "$0")/../.."
ROOT=$PWD
PYTHON=${PYTHON:-python3}
OUT=${OUT:-$ROOT/build/device}
DEADLINE=${DEADLINE:-570} # seconds of all sections together
SITE=${TMPDIR:-/tmp}/penstock-site
BUILD=${TMPDIR:-/tmp}/penstock-build
REHEARSE=()
[ "${1:-}" = --rehearse ] && { REHEARSE=(--rehearse); shift; }
SECTIONS=("$@")
[ ${#SECTIONS[@]} -gt 0 ] || SECTIONS=(build tests limits ops)
mkdir -p "$OUT" "$SITE"
export PYTHONPATH=$ROOT/python:$SITE:$ROOT${PYTHONPATH:+:$PYTHONPATH}
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false
unset TRITON_INTERPRET

build() {
  [ -e python/penstock/kernels ] || ln -s ../../kernels python/penstock/kernels
  if compgen -G '.whl/*.whl' >/dev/null; then
    "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade \
      --target "$SITE" .whl/*.whl || return 1
  fi
  cmake -S . -B "$BUILD" -G Ninja -DCMAKE_BUILD_TYPE=Release -DPENSTOCK_LEVELS=host \
    -DPython_EXECUTABLE="$(command -v "$PYTHON")" \
    -Dpybind11_DIR="$("$PYTHON" -m pybind11 --cmakedir)" &&
    ninja -C "$BUILD" && cp "$BUILD"/_native*.so python/penstock/ || return 1
  "$PYTHON" -c 'import penstock.engine.core, penstock._native; print("the Python module loads")' ||
    return 1
  [ -f csrc/cuda/abi.h ] || return 0
  cuda_library || echo "the CUDA library was not built: Triton serves alone"
}

# The library of csrc/cuda as the distribution would bring it: a package named after CUDA's major.
cuda_library() {
  local major package
  major=$("$PYTHON" -c 'import torch; print(torch.version.cuda.split(".")[0])') || return 1
  package=$SITE/penstock_cuda$major
  if compgen -G ".whl/penstock_cuda$major-*.whl" >/dev/null; then
    echo "the CUDA library came as a wheel"
    return 0
  fi
  cmake -S . -B "$BUILD-cuda" -G Ninja -DCMAKE_BUILD_TYPE=Release -DPENSTOCK_CUDA=ON \
    -DPENSTOCK_CPU=OFF -DPENSTOCK_PYTHON=OFF && cmake --build "$BUILD-cuda" || return 1
  mkdir -p "$package" && touch "$package/__init__.py" &&
    find "$BUILD-cuda" -name libpenstock_cuda.so -exec cp {} "$package/" \; || return 1
  "$PYTHON" -m penstock.kernels.triton.package "$package" --targets 90 ||
    echo "the Triton kernels were not packaged: they are compiled when they are wanted"
}

# run NAME SECONDS COMMAND...: at most so long and not beyond DEADLINE, its output on the screen and
# in $OUT/log.txt.
run() {
  local name=$1 limit=$2 began=$SECONDS status
  local left=$((DEADLINE - SECONDS))
  shift 2
  [ "$left" -ge "$limit" ] || limit=$left
  if [ "$limit" -lt 15 ]; then
    echo "#### $name: no time is left"
    FAILED+=("$name")
    return
  fi
  echo "#### $name (at most ${limit} s)"
  timeout -k 10 "$limit" "$@" 2>&1 | tee -a "$OUT/log.txt"
  status=${PIPESTATUS[0]}
  case $status in
    0) echo "#### $name: done in $((SECONDS - began)) s" ;;
    124 | 137) echo "#### $name: cut off after $limit s" ;;
    *) echo "#### $name: failed ($status) after $((SECONDS - began)) s" ;;
  esac
  [ "$status" -eq 0 ] || FAILED+=("$name")
}

FAILED=()
bench() {
  local kernels=auto
  [ "${1%-triton}" = "$1" ] || kernels=triton
  run "$1" "$2" "$PYTHON" -m bench.device "${1%-triton}" --kernels $kernels --out "$OUT" \
    "${REHEARSE[@]}"
}
for section in "${SECTIONS[@]}"; do
  case $section in
    build)
      if [ ${#REHEARSE[@]} -gt 0 ]; then
        echo "#### build: what is built here already is rehearsed with"
      else
        export -f build cuda_library
        export PYTHON SITE BUILD
        run build 300 bash -c build
      fi
      ;;
    tests)
      # Most of the time kernels are compiled: by several processes, where that can be, each of
      # which has neighbouring tests, and so the same kernels.
      WORKERS=()
      "$PYTHON" -c 'import xdist' 2>/dev/null && WORKERS=(-n 8 --dist worksteal)
      # Verdicts on kernels that were tried by several at once are not kept.
      run tests 300 env PENSTOCK_HOME="$(mktemp -d)" "$PYTHON" -m pytest -q -m gpu "${WORKERS[@]}" \
        -p no:cacheprovider -p bench.device.outcomes --outcomes "$OUT" -o addopts="" --tb=short \
        --strict-markers --timeout=240 --continue-on-collection-errors tests/*/test_gpu_*.py
      ;;
    limits) bench limits 240 ;; # the library's kernels are tried first
    ops | ops-triton | products | experts | profile | adapters | peers | llama-8b | invariance | qwen3-0.6b) bench "$section" 270 ;;
    qwen3-8b | qwen3-8b-triton | qwen3-8b-fp8 | qwen3-30b-a3b) bench "$section" 450 ;;
    *)
      echo "no section $section; see the head of $0" >&2
      exit 2
      ;;
  esac
done
[ ${#FAILED[@]} -eq 0 ] || { echo "not well: ${FAILED[*]}"; exit 1; }
