#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs the wheels of build/dist where no compiler is: in a Debian with Python and pip and nothing else, made by
# debootstrap, without a network. Usage: tools/try_wheels.sh [SUITE ...]     (default: bookworm trixie)
#
# Debian 12 has Python 3.11; Debian 13 has 3.13, and forky 3.14, which take the wheel with the stable ABI. Exits 77 without root,
# debootstrap, mount namespaces, or a mirror of Debian.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
. "$top/tools/debian.sh"

if [ "${1:-}" != --inside ]; then
    lacks() { echo "tools/try_wheels.sh needs $*" && exit 77; }
    [ "$(id -u)" = 0 ] || lacks "root: debootstrap and chroot"
    command -v debootstrap >/dev/null || lacks "debootstrap: apt-get install debootstrap"
    unshare --mount true 2>/dev/null || lacks "mount namespaces, which are refused here"
    mirror bookworm >/dev/null || lacks "a mirror of Debian in /etc/apt"
    compgen -G "$top/build/dist/*.whl" >/dev/null || lacks "wheels in build/dist: make wheels"
    [ $# -gt 0 ] || set -- bookworm trixie
    root=$top/build/wheels-fresh
    rm -rf --one-file-system "$root"
    mkdir -p "$root"
    in_namespaces "$root" no "$0" --inside "$root" "$@"
fi
root=$2
shift 2
for suite in "$@"; do
    echo "[wheels] debootstrap $suite (minbase, python3, pip)"
    bootstrap "$suite" "$root/$suite" "$top/build/wheels-fresh.log" python3,python3-pip,python3-venv
    mkdir -p "$root/$suite/dist" "$root/$suite/try"
    cp "$top"/build/dist/*.whl "$root/$suite/dist/"
    cp "$top/tools/smoke.py" "$root/$suite/try/"
    mount -t proc proc "$root/$suite/proc"
    mount --rbind /dev "$root/$suite/dev"
    for compiler in cc gcc c++ cmake; do
        [ ! -e "$root/$suite/usr/bin/$compiler" ] || { echo "$suite has $compiler: nothing is shown"; exit 1; }
    done
    # No network, so that pip can have nothing but what lies there.
    unshare --net chroot "$root/$suite" /usr/bin/env -i HOME=/root PATH=/usr/bin:/bin LANG=C.UTF-8 bash -ec '
        python3 -m venv /try/venv
        /try/venv/bin/pip install -q --no-index --find-links /dist penstock
        cd /try && venv/bin/python smoke.py' </dev/null
    echo "[wheels] $suite: installed and tried"
done
