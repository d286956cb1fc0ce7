#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs the test programs of the release build on the kernels of other Debians, over the kernel's own NVMe driver.
# Usage: tools/kernels.sh [--keep] [SUITE ...]           (default: bookworm trixie)
#        tools/kernels.sh --show SUITE NAME              what one of them printed there; exits as it did
#
# QEMU emulates the machine in software, since few machines that run tests may use KVM: two processors, two memory nodes
# with one processor each, and three NVMe disks, of which one is near the second node. What runs there is listed in
# tools/kernels_guest.sh, which is the machine's init; results are in build/kernels-results.
#
# The root file system is of the Debian of this machine, since the programs were built for it; only the kernel is of
# SUITE. Everything is made in build/kernels and removed in the end, also when this is killed. Needs root: 77 without.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
build=$top/build/release
work=$top/build/kernels
results=$top/build/kernels-results
root_id=70656e73
limit_s=1200 # a kernel: it takes a third of that on two processors that do nothing else
. "$top/tools/debian.sh"

show() { # show SUITE NAME [--gtest_output=xml:FILE]: as if the test program had run here
    local at=$results/$1/$2 kind status=
    cat "$at.log" 2>/dev/null || true
    case "${3:-}" in --gtest_output=xml:*) [ ! -e "$at.xml" ] || cp "$at.xml" "${3#*:}" ;; esac
    for kind in tests check; do [ ! -e "$at.$kind" ] || status=$(cat "$at.$kind"); done
    [ -n "$status" ] || { echo "$2 has no result of $1: the machine did not come as far as its end"; status=1; }
    return "$status"
}

if [ "${1:-}" = --show ]; then
    show "${2:?--show wants a SUITE and a NAME}" "${3:?--show wants a NAME}" "${4:-}"
    exit
fi

if [ "${1:-}" != --inside ]; then
    keep=no
    suites=()
    for word in "$@"; do
        case "$word" in
        --keep) keep=yes ;;
        -*) echo "kernels: there is no option $word; the head of tools/kernels.sh says which there are" >&2 && exit 2 ;;
        *) suites+=("$word") ;;
        esac
    done
    rm -rf "$results" # first of all: nothing old is to be counted
    lacks() { echo "tools/kernels.sh needs $*" && exit 77; }
    [ "$(uname -m)" = x86_64 ] || lacks "a machine of x86_64, and this is $(uname -m)"
    [ "$(id -u)" = 0 ] || lacks "root: debootstrap and chroot"
    for tool in debootstrap:debootstrap unshare:util-linux qemu-system-x86_64:qemu-system-x86 mke2fs:e2fsprogs \
        sfdisk:fdisk; do
        command -v "${tool%:*}" >/dev/null || lacks "${tool%:*}: apt-get install ${tool#*:}"
    done
    unshare --mount true 2>/dev/null || lacks "mount namespaces, which are refused here"
    [ -x "$build/bin/penstock" ] || { echo "kernels: no release build: tools/build.py release" >&2 && exit 1; }
    rm -rf --one-file-system "$work"
    mkdir -p "$work" "$results"
    [ ${#suites[@]} -gt 0 ] || suites=(bookworm trixie)
    in_namespaces "$work" "$keep" "$0" --inside "${suites[@]}"
fi
shift

# --- in namespaces of our own from here on ----------------------------------------------------------------------------

say() { printf '[kernels %4ds] %s\n' "$SECONDS" "$*"; }

# The kernel's package alone, without what it depends on, by an apt that knows nothing of this machine but its mirror.
fetch_kernel() { # fetch_kernel SUITE: kernel and modules into $work/SUITE; sets `release`
    local place=$work/$1 package
    mkdir -p "$place"/apt/{lists,cache/archives}/partial "$place"/{settings,files}
    : >"$place/apt/status"
    while IFS= read -r f; do cp -L "$f" "$place/settings/"; done < <(apt_settings)
    cat >"$place/apt.conf" <<END
Dir::State "$place/apt";
Dir::State::status "$place/apt/status";
Dir::Cache "$place/apt/cache";
Dir::Etc::parts "$place/settings";
Dir::Etc::sourcelist "$place/sources.list";
Dir::Etc::sourceparts "-";
APT::Sandbox::User "root";
END
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(mirror "$1") $1 main" >"$place/sources.list"
    export APT_CONFIG=$place/apt.conf
    {
        apt-get -q update
        package=$(apt-cache depends linux-image-cloud-amd64 | awk '/Depends: linux-image-/ { print $2; exit }')
        (cd "$place" && apt-get -q download "$package")
        dpkg-deb -x "$place/$package"_*.deb "$place/files"
    } >"$place/log" 2>&1 || { tail -n 20 "$place/log"; echo "no kernel could be fetched from $1 (above)"; return 1; }
    unset APT_CONFIG
    release=${package#linux-image-}
}

# As on this machine: the build and the inputs that tests read lie where they were when the tests were compiled.
make_root() {
    local name
    say "debootstrap $host"
    bootstrap "$host" "$work/root" "$top/build/kernels.log" \
        e2fsprogs,xfsprogs,btrfs-progs,kmod,util-linux,procps,mount
    mkdir -p "$work/root$build/tests" "$work/root$build/bin" "$work/root$top/fuzz" "$work/root/out" "$work/root/scratch"
    for name in "$build"/tests/*_test; do cp "$name" "$work/root$build/tests/"; done
    cp "$build/bin/penstock" "$work/root$build/bin/"
    cp -r "$top/fuzz/corpus" "$work/root$top/fuzz/"
    ln -s "$build" "$work/root/release"
    cp "$top/tools/kernels_guest.sh" "$work/root/sbin/kernels-init"
}

add_kernel() { # add_kernel SUITE RELEASE
    local modules=$work/$1/files/usr/lib/modules/$2
    [ -d "$modules" ] || modules=$work/$1/files/lib/modules/$2
    mkdir -p "$work/root/usr/lib/modules"
    mv "$modules" "$work/root/usr/lib/modules/"
    chroot "$work/root" depmod "$2"
}

# In a partition, since a kernel without an initial ramdisk knows no other name that is the same at every boot.
make_image() {
    truncate -s 3G "$work/root.img" # sparse
    {
        printf 'label: dos\nlabel-id: 0x%s\nstart=1MiB, type=83\n' "$root_id" | sfdisk -q "$work/root.img"
        mke2fs -q -F -t ext4 -E offset=1048576 -d "$work/root" "$work/root.img" 3000M
    } >>"$top/build/kernels.log" 2>&1 ||
        { tail -n 5 "$top/build/kernels.log"; echo "no image could be made (above)"; return 1; }
}

run_machine() { # run_machine SUITE RELEASE: 0 when it came to its end and all went well
    local place=$work/$1 found=$results/$1 status=0 name
    mkdir -p "$found"
    while read -r name; do : >"$found/$name"; done < <("$top/tools/kernels_guest.sh" --list "$2")
    truncate -s 8G "$place/scratch.img"
    truncate -s 64M "$place/out.img"
    say "$1: Linux $2 in QEMU, for at most $limit_s s"
    local begun=$SECONDS
    # Without cx16: after cmpxchg16b QEMU 7.2 has nonsense among the flags, and the next interrupt ends the kernel in a
    # double fault, after minutes or at once. A kernel that finds no such instruction takes another way.
    TMPDIR=$place timeout --kill-after=10 $limit_s qemu-system-x86_64 -machine q35 -accel tcg,thread=multi \
        -cpu max,-cx16 -smp 2,sockets=2 -m 4G -nodefaults -display none -no-reboot -serial "file:$found/console.log" \
        -object memory-backend-ram,id=near,size=2G -numa node,memdev=near,cpus=0 \
        -object memory-backend-ram,id=far,size=2G -numa node,memdev=far,cpus=1 \
        -device pxb-pcie,id=bus1,bus=pcie.0,bus_nr=128,numa_node=1 -device pcie-root-port,id=port1,bus=bus1,chassis=1 \
        -drive "file=$work/root.img,format=raw,if=none,id=root,cache=unsafe,snapshot=on" \
        -drive "file=$place/out.img,format=raw,if=none,id=out,cache=unsafe" \
        -drive "file=$place/scratch.img,format=raw,if=none,id=scratch,cache=unsafe,discard=unmap" \
        -device nvme,serial=root,drive=root,bus=pcie.0 \
        -device nvme,serial=out,drive=out,bus=pcie.0,logical_block_size=4096,physical_block_size=4096 \
        -device nvme,serial=scratch,drive=scratch,bus=port1 \
        -kernel "$place/files/boot/vmlinuz-$2" -append "console=ttyS0 quiet loglevel=3 oops=panic panic=-1 \
            root=PARTUUID=$root_id-01 rootfstype=ext4 rw init=/sbin/kernels-init" >"$place/qemu.log" 2>&1 || status=$?
    tar -xf "$place/out.img" -C "$found" 2>>"$place/qemu.log" || status=1
    say "$1: the machine ran for $((SECONDS - begun)) s"
    summary "$1" || status=1
    [ -e "$found/finished" ] || {
        status=1
        echo "$1: the machine did not come to its end; QEMU and its console said last:"
        tail -n 20 "$place/qemu.log" "$found/console.log" || true
    }
    return "$status"
}

summary() { # summary SUITE: a line for each program; 0 when all of them are well
    local at all_well=0 name ended
    for at in "$results/$1"/*.tests "$results/$1"/*.check; do
        name=$(basename "${at%.*}")
        ended=$(cat "$at")
        [ "$ended" = 0 ] || all_well=1
        case "$at" in
        *.check) printf '    %-28s exit status %s\n' "$name" "${ended:-none}" ;;
        *) cat "${at%.*}.log" 2>/dev/null | awk -v name="$name" -v ended="${ended:-none}" '
            /^\[       OK \] / { passed++ }
            /^\[  FAILED  \] .*\([0-9]+ ms\)$/ { failed++ }
            /^\[  SKIPPED \] .*\([0-9]+ ms\)$/ { skipped++ }
            END { printf "    %-28s exit status %s, %d passed, %d failed, %d skipped\n",
                         name, ended, passed, failed, skipped }' ;;
        esac
    done
    return $all_well
}

host=$(. /etc/os-release && echo "${VERSION_CODENAME:-bookworm}")
make_root
releases=()
for suite in "$@"; do
    fetch_kernel "$suite"
    say "$suite has Linux $release"
    add_kernel "$suite" "$release"
    releases+=("$release")
done
make_image
status=0
for i in "${!releases[@]}"; do
    run_machine "${@:i+1:1}" "${releases[i]}" || status=1
done
exit $status
