#!/usr/bin/env bash
# prepare.sh [FOLDER]: download the emulated machine's Debian packages and build Bochs. Run it once.
# Installs no packages: apt keeps its own state under FOLDER, and packages are unpacked there.
set -euo pipefail
work=$(realpath -m "${1:-build/emulate}")
mkdir -p "$work"/apt/{state/lists/partial,cache/archives/partial,none} "$work"/{deb,root,bochs}
keys=/usr/share/keyrings/debian-archive-keyring.gpg
mirror=${MIRROR:-http://deb.debian.org/debian}

cat > "$work/apt/sources.list" <<END
deb [signed-by=$keys] $mirror trixie main
deb-src [signed-by=$keys] $mirror trixie main
deb [signed-by=$keys] $mirror sid main
END
cat > "$work/apt/apt.conf" <<END
Dir::State "$work/apt/state";
Dir::State::status "$work/apt/state/status";
Dir::Cache "$work/apt/cache";
Dir::Etc::sourcelist "$work/apt/sources.list";
Dir::Etc::sourceparts "$work/apt/none";
Dir::Etc::preferencesparts "$work/apt/none";
APT::Default-Release "trixie";
APT::Sandbox::User "root";
END
: > "$work/apt/state/status"
export APT_CONFIG="$work/apt/apt.conf"
apt-get update -q

# The firmware, the boot loader, a shell for the guest, and xorriso with its libraries.
apt-get install -y -q --no-install-recommends --download-only \
    bochsbios vgabios isolinux syslinux-common busybox-static xorriso
# Kernel 6.15 or later: its `setcpuid` enables AMX on this CPU model (see README.md).
kernel=$(apt-cache search --names-only '^linux-binary-[0-9].*-cloud-amd64$' | cut -d' ' -f1 | tail -n 1)
(cd "$work/deb" && apt-get download -q -t sid "$kernel" && apt-get download -q bochs) # for its VGA BIOS
for package in "$work"/apt/cache/archives/*.deb "$work"/deb/*.deb; do
    dpkg-deb -x "$package" "$work/root"
done

# Debian's Bochs has three problems: it multiplies all bytes of int8 tiles as unsigned (fixed upstream
# in 3.1), VCVTNE2PS2BF16 reads past the end of one operand, and it needs a screen.
cd "$work/bochs"
apt-get source -q --download-only bochs || test -e bochs_3.0+dfsg.orig.tar.xz
tar -xf bochs_3.0+dfsg.orig.tar.xz && cd bochs-3.0
sed -i -e '/Bit32u DPBDSS(/,/^}/ s/Bit8u/Bit8s/g' \
    -e '/Bit32u DPBDSU(/,/^}/ { /xbyte\[4\]/ s/Bit8u/Bit8s/g }' \
    -e '/Bit32u DPBDUS(/,/^}/ { /ybyte\[4\]/ s/Bit8u/Bit8s/g }' cpu/avx/amx.cc
sed -i 's/bfloat16(op1.vmm32u(n))/bfloat16(op1.vmm32u(n - DWORD_ELEMENTS(len)))/' cpu/avx/avx512_bf16.cc
CXXFLAGS=-O2 ./configure --with-nogui --enable-x86-64 --enable-cpu-level=6 --enable-avx --enable-evex \
    --enable-amx --enable-all-optimizations --enable-monitor-mwait --enable-protection-keys \
    --enable-long-phy-address --enable-uintr --enable-cet --disable-docbook >/dev/null
make -s -j"$(nproc)" bochs
echo "ready: $work"
