#!/bin/sh
# Puts Debian's Python for aarch64 into DIR, for the emulator: nothing of it is installed in this system.
#
# usage: scripts/release/aarch64.sh DIR      needs debootstrap and qemu-user-static (Debian, Ubuntu), and root
set -eu
dir=$1
suite=${SUITE:-bookworm}
command -v qemu-aarch64-static >/dev/null || { echo "missing: apt-get install qemu-user-static" >&2; exit 1; }
command -v debootstrap >/dev/null || { echo "missing: apt-get install debootstrap" >&2; exit 1; }
debootstrap --arch=arm64 --foreign --variant=minbase --include=python3,python3-venv,ca-certificates "$suite" "$dir" \
    >"$dir.log" 2>&1 || { tail -n 5 "$dir.log" >&2; exit 1; }
for package in "$dir"/var/cache/apt/archives/*.deb; do
    dpkg -x "$package" "$dir"
done
qemu-aarch64-static -L "$dir" "$dir"/usr/bin/python3 --version
