#!/usr/bin/env bash
# run.sh [FOLDER]: build the native tests for the wide ISAs and run them on an emulated Sapphire
# Rapids. Prints PASS or FAIL for each; exit status 1 if one failed. FOLDER: as passed to prepare.sh.
# PYTHON=.venv/bin/python (with penstock built with PENSTOCK_ISAS=all) adds tests/native/*.py, or only
# the file TESTS; WHICH is passed to pytest as -k.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(realpath "${1:-build/emulate}")
root=$work/root guest=$work/guest iso=$work/iso
rm -rf "$guest" "$iso" && mkdir -p "$guest"/{bin,dev,proc,sys,tmp} "$iso/isolinux"

cmake -S . -B "$work/tests" -G "${GENERATOR:-Ninja}" -DCMAKE_BUILD_TYPE=Release -DPENSTOCK_PYTHON=OFF \
    -DPENSTOCK_TESTS=ON -DPENSTOCK_ISAS=all -DCMAKE_EXE_LINKER_FLAGS=-static >/dev/null
cmake --build "$work/tests" --parallel "$(nproc)" >/dev/null
for test in linear lora arena plan thread_pool; do
    strip -o "$guest/bin/${test}_test" "$work/tests/tests/native/${test}_test"
done
cp "$root/usr/bin/busybox" "$guest/bin/busybox"
cp tools/emulate/init "$guest/init"
if [ -n "${PYTHON:-}" ]; then
    tests=${TESTS:-tests/native}
    "$PYTHON" tools/emulate/python_files.py "$tests" > "$work/python-files"
    tar -C / -c -h --hard-dereference -T "$work/python-files" | tar -C "$guest" -x
    mkdir -p "$guest/lib64" && cp -L /lib64/ld-linux-x86-64.so.2 "$guest/lib64/"
    echo "cd $PWD; python=$(realpath -s "$PYTHON"); tests=$tests; which='${WHICH:-avx_vnni or avx512 or amx}'" > "$guest/python-tests"
fi

(cd "$guest" && find . | "$guest/bin/busybox" cpio -o -H newc 2>/dev/null) > "$iso/initrd"
cp "$(find "$root" -name 'vmlinuz*' -type f | head -n 1)" "$iso/vmlinuz"
cp "$root/usr/lib/ISOLINUX/isolinux.bin" "$root/usr/lib/syslinux/modules/bios/ldlinux.c32" "$iso/isolinux/"
cp tools/emulate/isolinux.cfg "$iso/isolinux/"
"$root/usr/lib64/ld-linux-x86-64.so.2" --library-path "$root/usr/lib/x86_64-linux-gnu" \
    "$root/usr/bin/xorriso" -as mkisofs -quiet -o "$work/boot.iso" -b isolinux/isolinux.bin \
    -c isolinux/boot.cat -no-emul-boot -boot-load-size 4 -boot-info-table "$iso" 2>/dev/null

rm -f "$work/serial.log"
(cd "$work" && bochs/bochs-3.0/bochs -q -f "$OLDPWD/tools/emulate/bochsrc" >/dev/null 2>&1) || true
grep -a -E '^(avx_vnni|avx512|amx)|^PASS|^FAIL|failed|passed|^ENDED' "$work/serial.log"
grep -a -q '^ENDED' "$work/serial.log" && ! grep -a -q '^FAIL' "$work/serial.log"
