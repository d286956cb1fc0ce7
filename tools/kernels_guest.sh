#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Init of the machines of tools/kernels.sh: runs test programs of the release build, and says on the third disk how each
# went. `tools/kernels_guest.sh --list RELEASE` names what runs on a kernel of that release, for who waits for it.
#
# NAME.tests is a program of GoogleTest (with NAME.log and, unless it crashed, NAME.xml), NAME.check a function below;
# each holds an exit status.
listing=
[ "${1:-}" != --list ] || listing=yes
release=${2:-$(uname -r)}
program_limit_s=600

at_least() { # at_least MAJOR MINOR: the kernel is that, or newer
    local major=${release%%.*} rest=${release#*.}
    [ "$major" -gt "$1" ] || { [ "$major" = "$1" ] && [ "${rest%%[!0-9]*}" -ge "$2" ]; }
}

disk_of() { # disk_of SERIAL: how the kernel numbers them is chance
    local block
    for block in /sys/block/nvme*; do
        [ "$(tr -d ' ' <"$block/device/serial")" != "$1" ] || echo "/dev/${block##*/}"
    done
}

store() { # all results so far: a machine that hangs later has told this much
    dmesg >/out/dmesg.log
    tar -cf "$out" -C /out . && sync "$out"
}

tests() { # tests NAME PROGRAM [FILTER]: not those whose verdict depends on time, for the processors are emulated
    [ -z "$listing" ] || { echo "$1.tests"; return; }
    local filter=${3:-*}
    case $filter in *-*) filter=$filter:*Timed:*Timed/* ;; *) filter=$filter-*Timed:*Timed/* ;; esac
    GTEST_FILTER=$filter timeout --kill-after=10 $program_limit_s "/release/tests/$2" --gtest_output="xml:/out/$1.xml" \
        </dev/null >"/out/$1.log" 2>&1
    echo $? >"/out/$1.tests"
    store
}

check() { # check NAME FUNCTION ...
    [ -z "$listing" ] || { echo "$1.check"; return; }
    (set -euo pipefail && "${@:2}") </dev/null >"/out/$1.log" 2>&1
    echo $? >"/out/$1.check"
    store
}

setting() { # setting NAME VALUE
    [ -n "$listing" ] || sysctl -q -w "$1=$2"
}

# --- what is checked besides the test programs ------------------------------------------------------------------------

says() { # says TEXT PATTERN ...: a doctor's report has a line of each
    local pattern
    printf '%s\n' "$1"
    for pattern in "${@:2}"; do
        grep -qE -- "$pattern" <<<"$1" || { echo "and no line of it is: $pattern"; return 1; }
    done
}

doctor() { /release/bin/penstock doctor "$@"; }
doctor_of_nobody() { setpriv --reuid=65534 --regid=65534 --clear-groups /release/bin/penstock doctor /scratch/nobody; }

# A disk by the kernel's own driver, and nearer to one memory node than to the other.
check_doctor() {
    says "$(doctor /scratch)" "ok +kernel +${release//+/.}$" 'ok +io_uring +allowed' 'ok +backend +io_uring:' \
        'ok +memory nodes +2: ' 'ok +direct I/O +ext4: yes' 'ok +alignment +memory 4 B, reads 512 B, writes 512 B' \
        'ok +disk +nvme.n1 \(QEMU NVMe Ctrl\), blocks of 512 B, memory node 1$' 'ok +round trip .*equal' ' 0 problems'
}

check_doctor_of_a_disk() {
    says "$(doctor "$out")" 'ok +disk +nvme.n1 .*blocks of 4096 B' 'alignment .*reads 4096 B'
}

# The cure is proven by taking it.
check_io_uring_forbidden() {
    says "$(doctor /scratch)" 'better +io_uring +refused by sysctl kernel.io_uring_disabled=2: nobody may use' \
        'fix it: +sysctl -w kernel.io_uring_disabled=0' 'ok +backend +libaio' ' 0 problems'
    sysctl -q -w kernel.io_uring_disabled=0
    says "$(doctor /scratch)" 'ok +io_uring +allowed' 'ok +backend +io_uring:'
    sysctl -q -w kernel.io_uring_disabled=2
}

check_io_uring_for_a_group() {
    install -d -o 65534 -g 65534 /scratch/nobody
    says "$(doctor /scratch)" 'ok +io_uring +allowed'
    says "$(doctor_of_nobody)" 'better +io_uring +refused by sysctl kernel.io_uring_disabled=1: only root and one' \
        'fix it: .*join the group of kernel.io_uring_group' 'ok +backend +libaio' ' 0 problems'
    sysctl -q -w kernel.io_uring_group=65534
    says "$(doctor_of_nobody)" 'ok +io_uring +allowed' 'ok +backend +io_uring:'
}

# --- what runs --------------------------------------------------------------------------------------------------------

# Left out is what computes in a model and asks nothing of a kernel: that runs elsewhere, and here all is much slower.
jobs_of_all() {
    check doctor check_doctor
    check doctor_of_a_disk check_doctor_of_a_disk
    tests os_test os_test
    tests memory_test memory_test
    tests engine_test engine_test
    tests engine_uring_test engine_uring_test
    tests engine_aio_test engine_aio_test
    tests engine_posix_test engine_posix_test
    tests api_test api_test
    tests allocations_test allocations_test
    tests suite_test suite_test '-*/fake*:*FaultPoints.*' # the simulated kernel
    tests format_test format_test
    # Crashes of a model of a file system, and bits flipped in files that were written once.
    tests stream_test stream_test
    tests state_test state_test '-*CrashOf*:*ACrashAt*:Structure.ManyTensorsTakeNoTime'
    tests store_test store_test '-*CrashOf*:Corruption.*:*ACrashAt*'
    # fio is not here; and the search for the best options is a search in time, of which there is another kind here.
    tests cli_test cli_test '-*BesideFio*:Tune*:*/Tune*'
}

# The sysctl came with 6.6. An engine that nobody told what to take must take Linux AIO, and work as ever.
jobs_without_io_uring() {
    setting kernel.io_uring_disabled 2
    check io_uring_forbidden check_io_uring_forbidden
    tests forbidden.os_test os_test 'IoUringAccess.*'
    tests forbidden.api_test api_test
    tests forbidden.suite_test suite_test '*/auto*'
    setting kernel.io_uring_disabled 1
    check io_uring_for_a_group check_io_uring_for_a_group
    setting kernel.io_uring_disabled 0
}

jobs() {
    jobs_of_all
    if at_least 6 6; then jobs_without_io_uring; fi
}

[ -z "$listing" ] || { jobs; exit; }
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb LANG=C.UTF-8 PENSTOCK_TEST_SEEDS=200 TMPDIR=/scratch
mount -t proc proc /proc
mount -t sysfs sys /sys
mountpoint -q /dev || mount -t devtmpfs dev /dev
mkdir -p /dev/shm
for folder in /dev/shm /run /out; do mount -t tmpfs tmpfs $folder; done
mount -t cgroup2 cgroup2 /sys/fs/cgroup
for module in loop xfs btrfs overlay; do modprobe $module; done
ulimit -n 1048576
out=$(disk_of out)
mkfs.ext4 -q "$(disk_of scratch)"
mount "$(disk_of scratch)" /scratch
chmod 1777 /scratch
cd /scratch || echo "there is no /scratch"
jobs
touch /out/finished
store
echo o >/proc/sysrq-trigger
sleep 60 # init must not end before the machine does
