#!/usr/bin/env bash
# Runs the checks and measurements of a GPU machine, in sections. Each section has a time limit and
# writes its results: a table on the screen, results.jsonl and logs in $OUT. docs/gpu-ladder.md says
# in which order to run them and how to read the summary.
#
#   bench/device/run.sh [--rehearse] [SECTION ...]        default: call 1 of the ladder
#
#   build       the Python module; the CUDA library unless .whl/ has its wheel (1 to 3 min)
#   limits      copy bandwidth and the rate of a bfloat16 product: the floors of all other sections;
#               tries the CUDA library's kernels (1 min)
#   check       every kernel at served shapes against float32, then Qwen3-0.6B's shape through the
#               serving path, checked by transformers (2 min)
#   qwen3-0.6b  the engine on a checkpoint of that shape: start, prefill, decode, whole runs (1 min)
#   qwen3-8b    the headline figures, the same on 8B (2 min); qwen3-8b-triton: without the library
#   ops         each op of a decode step beside its floor (2 min); ops-triton: without the library
#   variants    decode attention and the skinny product in every variant of the tuning table (1 min)
#   products    the fastest kernel of each product; writes linear.json and applies it (3 min);
#               products-float8: weights in 8-bit floats only (1 min)
#   profile     kernels of decode steps, and the share of time in which the GPU idles (1 min)
#   server      the HTTP server under a load client (3 min)
#   sanitizer   memcheck, racecheck, synccheck over the CUDA library's kernels (3 min)
#   counters    Nsight Compute's counters of one launch of each kernel (2 min)
#   tests       pytest -m gpu (4 min)
#   qwen3.5-2b, glm-4.7-flash-4-layers
#               the engine on a model with recurrent states, and with latent attention (2 min each)
#   mtp         the MTP head of the model with recurrent states: its passes, and steps that verify
#               1, 3 and 7 drafts beside a decode step (1 min)
#   qwen3-8b-fp8, qwen3-30b-a3b, llama-8b, experts, invariance, adapters, peers
#               further models and features (2 min each)
#   summary     each headline figure beside its floor and the peers' figures; always runs, last
#
# All sections together end within $DEADLINE seconds (default 570); the last ones are cut off. The
# ladder, with a limit of 10 minutes per command:
#
#   1. bench/device/run.sh                        build limits check qwen3-0.6b qwen3-8b ops
#   2. bench/device/run.sh build products variants qwen3-8b profile
#   3. bench/device/run.sh build sanitizer tests server
#
# A machine that is still warm has its build and its checkpoints; a fresh one needs `build`.
#
# No network is needed. `bench/device/prepare` downloads and builds the wheels that a GPU machine
# lacks, on any machine with a network, into .whl/ at the root of the repository (ignored by git; copy
# it along). numpy, torch, triton, safetensors, tokenizers, transformers, pytest, pytest-timeout,
# hypothesis, cmake, ninja and pybind11 must be installed. --rehearse runs every section on the CPU in
# small sizes.
set -uo pipefail
cd "$(dirname "$0")/../.."
ROOT=$PWD
PYTHON=${PYTHON:-python3}
OUT=${OUT:-$ROOT/build/device}
DEADLINE=${DEADLINE:-570} # seconds for all sections together
SITE=${TMPDIR:-/tmp}/penstock-site
BUILD=${TMPDIR:-/tmp}/penstock-build
REHEARSE=()
[ "${1:-}" = --rehearse ] && { REHEARSE=(--rehearse); shift; }
SECTIONS=("$@")
[ ${#SECTIONS[@]} -gt 0 ] || SECTIONS=(build limits check qwen3-0.6b qwen3-8b ops)
mkdir -p "$OUT" "$SITE"
# Made on every call: a warm machine gets a new copy of the tree, without untracked links.
[ -e python/penstock/kernels ] || ln -s ../../kernels python/penstock/kernels
compgen -G "$BUILD/_native*.so" >/dev/null && cp "$BUILD"/_native*.so python/penstock/
# Sections use the tables that products and variants measured earlier on this machine.
TABLES=$BUILD/tuning
compgen -G "$TABLES/*.json" >/dev/null && cp "$TABLES"/*.json kernels/tuning/
export PYTHONPATH=$ROOT/python:$SITE:$ROOT${PYTHONPATH:+:$PYTHONPATH}
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false
unset TRITON_INTERPRET

build() {
  if compgen -G '.whl/*.whl' >/dev/null; then
    "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade \
      --target "$SITE" .whl/*.whl || return 1
  fi
  native_module || return 1
  "$PYTHON" -c 'import penstock.engine.core, penstock._native; print("the Python module loads")' ||
    return 1
  [ -f csrc/cuda/abi.h ] || return 0
  cuda_library || echo "the CUDA library was not built: only Triton kernels are used"
}

# The Python module. Each call leaves it in $OUT, named after the hash of its sources; a copy in
# .whl/ saves a minute of the next build.
native_module() {
  local tag sources kept
  tag=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))') || return 1
  sources=$(find csrc/bind csrc/cpu csrc/plan -type f | LC_ALL=C sort | xargs cat | sha256sum)
  kept=_native-${sources:0:12}.so
  if [ -e ".whl/$kept" ]; then
    mkdir -p "$BUILD" && cp ".whl/$kept" "$BUILD/_native$tag"
  else
    cmake -S . -B "$BUILD" -G Ninja -DCMAKE_BUILD_TYPE=Release -DPENSTOCK_ISAS=host \
      -DPython_EXECUTABLE="$(command -v "$PYTHON")" \
      -Dpybind11_DIR="$("$PYTHON" -m pybind11 --cmakedir)" >/dev/null &&
      ninja -C "$BUILD" | tail -n 1 || return 1
  fi
  cp "$BUILD/_native$tag" python/penstock/ && strip -o "$OUT/$kept" "$BUILD/_native$tag"
}

# The library of csrc/cuda, packaged as in the distribution, under the name of CUDA's major version.
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
  "$PYTHON" -m penstock.kernels.triton.compile.package "$package" --targets 90 ||
    echo "the Triton kernels were not packaged: they are compiled on first use"
}

# run NAME SECONDS COMMAND...: run the command for at most SECONDS and not beyond DEADLINE, with its
# output on the screen and in $OUT/log.txt.
run() {
  local name=$1 limit=$2 began=$SECONDS status
  local left=$((DEADLINE - SECONDS))
  shift 2
  [ "$left" -ge "$limit" ] || limit=$left
  if [ "$limit" -lt 15 ]; then
    echo "#### $name: no time is left"
    FAILED+=("$name")
    return 1
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
  return "$status"
}

# apply TABLE...: use the tables just measured in the sections and calls that follow.
apply() {
  local table
  [ ${#REHEARSE[@]} -eq 0 ] || return 0
  mkdir -p "$TABLES"
  for table; do
    [ ! -s "$OUT/$table.json" ] || cp "$OUT/$table.json" "$TABLES/"
  done
  cp "$TABLES"/*.json kernels/tuning/
}

# Runs the CUDA library's kernels on small cases under each of the sanitizer's tools.
sanitize() {
  local tool library kernels
  read -r library kernels < <("$PYTHON" -c 'import torch
from penstock.kernels.cuda import find_library
from penstock.kernels.cuda.self_test import KERNELS
print(getattr(find_library(torch.version.cuda), "path", ""), ",".join(KERNELS))')
  [ -e "$library" ] || { echo "#### sanitizer: there is no CUDA library"; return; }
  for tool in memcheck racecheck synccheck; do
    run "sanitizer-$tool" 120 compute-sanitizer --tool "$tool" --error-exitcode 3 "$PYTHON" \
      -m penstock.kernels.cuda.self_test_child "$library" cuda:0 "$kernels" ""
  done
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
        echo "#### build: a rehearsal uses the existing build"
      else
        export -f build cuda_library native_module
        export PYTHON SITE BUILD OUT
        run build 300 bash -c build
      fi
      ;;
    tests)
      # Compiling kernels takes most of the time, so several processes do it if xdist is installed;
      # each runs neighbouring tests, which share kernels.
      WORKERS=()
      "$PYTHON" -c 'import xdist' 2>/dev/null && WORKERS=(-n 8 --dist worksteal)
      # Trial results of kernels that several processes tried at once are not kept.
      run tests 300 env PENSTOCK_HOME="$(mktemp -d)" "$PYTHON" -m pytest -q -m gpu "${WORKERS[@]}" \
        -p no:cacheprovider -p bench.device.pytest_plugin --outcomes "$OUT" -o addopts="" --tb=short \
        --strict-markers --timeout=240 --continue-on-collection-errors \
        tests/*/test_gpu_*.py tests/*/gpu/test_gpu_*.py
      ;;
    limits) bench limits 240 ;; # tries the library's kernels first
    products | products-float8) bench "$section" 270 && apply linear ;;
    variants) bench variants 270 && apply cuda chunks ;;
    ops | ops-triton | experts | profile | adapters | peers | llama-8b | invariance | qwen3-0.6b | \
      server | check | mtp) bench "$section" 270 ;;
    qwen3-8b | qwen3-8b-triton | qwen3-8b-fp8 | qwen3-30b-a3b | qwen3.5-2b | \
      glm-4.7-flash-4-layers) bench "$section" 450 ;;
    sanitizer) sanitize ;;
    counters)
      NCU=(ncu --clock-control none --profile-from-start off --set detailed -f -o "$OUT/counters")
      [ ${#REHEARSE[@]} -eq 0 ] || NCU=()
      run counters 270 "${NCU[@]}" "$PYTHON" -m bench.device counters --out "$OUT" "${REHEARSE[@]}"
      ;;
    summary) ;;
    *)
      echo "no section $section; see the head of $0" >&2
      exit 2
      ;;
  esac
done
"$PYTHON" -m bench.device.summary "$OUT" || FAILED+=(summary)
[ ${#FAILED[@]} -eq 0 ] || { echo "not well: ${FAILED[*]}"; exit 1; }
