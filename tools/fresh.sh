#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Proves the two commands of the README, `make demo` and `make test`, in a Debian 12 with nothing in it but git and make.
# Usage: tools/fresh.sh [--keep] [--suite NAME] [TARGET ...]     (default: --suite bookworm demo test)
#
# Targets run one after the other in one system, so one that installs less than those before it proves nothing: it needs a
# run of its own. A target may have variables: tools/fresh.sh "bench IDS=engine.cpu".
#
# `tools/fresh.sh smoke` is the short form, a part of .ci/run: the set-up, the package built and looked at, no torch.
#
# Another suite has another Python and another compiler: `--suite trixie test-python` builds and tests the package there.
#
# debootstrap makes the system in build/fresh; the committed state of this checkout is cloned into it. Everything is
# mounted in a mount namespace of its own, and all processes live in a process namespace of their own: however this ends,
# the kernel takes mounts and processes away, and the folder is removed. Exits 77 without root, debootstrap, mount
# namespaces or a mirror that answers.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
root=$top/build/fresh
suite=bookworm
. "$top/tools/debian.sh"

if [ "${1:-}" != --inside ]; then
    keep=no
    while true; do
        case "${1:-}" in
        --keep) keep=yes && shift ;;
        --suite) suite=${2:?--suite wants the name of one, such as trixie} && shift 2 ;;
        -*) echo "fresh: there is no option $1; the head of tools/fresh.sh says which there are" >&2 && exit 2 ;;
        *) break ;;
        esac
    done
    lacks() { echo "tools/fresh.sh needs $*" && exit 77; }
    [ "$(id -u)" = 0 ] || lacks "root: debootstrap and chroot"
    for tool in debootstrap:debootstrap unshare:util-linux wget:wget; do
        command -v "${tool%:*}" >/dev/null || lacks "${tool%:*}: apt-get install ${tool#*:}"
    done
    unshare --mount true 2>/dev/null || lacks "mount namespaces, which are refused here"
    url=$(mirror "$suite") || lacks "a mirror of Debian in /etc/apt"
    wget -q -T 20 -t 2 --spider "$url/dists/$suite/Release" || lacks "a mirror that answers; $url does not"
    rm -rf --one-file-system "$root"
    mkdir -p "$root"
    in_namespaces "$root" "$keep" "$0" --inside "$suite" "$@"
fi
suite=$2
shift 2
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(demo test)

# --- in namespaces of our own from here on ------------------------------------------------------------------------------

bring() { # a file or folder of the host, at the same place inside; links there would point back to the host
    [ -e "$1" ] || return 0
    rm -rf "${root:?}$1"
    mkdir -p "$root$(dirname "$1")"
    cp -aL "$1" "$root$(dirname "$1")/"
}

url=$(mirror "$suite")
echo "[fresh] debootstrap $suite (minbase, git, make)"
bootstrap "$suite" "$root" "$top/build/fresh.log" git,make,ca-certificates

# The same sources, certificates and pip settings as this machine: a mirror is a fact of the network, not of the system.
while IFS= read -r f; do bring "$f"; done < <(apt_settings)
served=()
for f in /etc/apt/sources.list /etc/apt/sources.list.d/*; do # only those that serve this suite: others need keys of their own
    [ -e "$f" ] && grep -q "\b$suite\b" "$f" && grep -qF "$url" "$f" || continue
    served+=("$f")
done
if [ ${#served[@]} -gt 0 ]; then
    rm -f "$root/etc/apt/sources.list" # debootstrap's own, which has nothing of security or updates
    for f in "${served[@]}"; do bring "$f"; done
fi
bring /etc/ssl/certs
bring /usr/local/share/ca-certificates
for f in /etc/pip.conf /etc/resolv.conf /etc/hosts; do bring "$f"; done
user_pip="${XDG_CONFIG_HOME:-$HOME/.config}/pip/pip.conf"
pip_files=()
for f in /etc/pip.conf "$user_pip" "$HOME/.pip/pip.conf"; do [ ! -e "$f" ] || pip_files+=("$f"); done
if [ -e "$user_pip" ]; then mkdir -p "$root/etc/xdg/pip" && cp -L "$user_pip" "$root/etc/xdg/pip/pip.conf"; fi

# Folders of packages that pip looks in, read-only at the same place.
package_folders() {
    { cat "${pip_files[@]}" /dev/null; env | grep '^PIP_' || true; } | grep -oE '(file://[^/ ]*)?/[^ =,]+' |
        sed -E 's#^file://[^/]*##; s#/simple/?$##' | sort -u
}
for folder in $(package_folders); do
    [ -d "$folder" ] || continue
    case "$folder" in / | /etc* | /usr* | /proc* | /sys* | /dev*) continue ;; esac
    mkdir -p "$root$folder"
    mount --rbind "$folder" "$root$folder"
    mount -o remount,bind,ro "$root$folder" 2>/dev/null || true
done

mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/run"
mkdir -p "$root/tmp" "$root/src"

echo "[fresh] cloning the committed state of this checkout"
git -c safe.directory='*' clone -q --no-hardlinks "$top" "$root/src/penstock"

pass_on=()
passed='^(PIP_[A-Z_]+|https?_proxy|no_proxy|all_proxy|SSL_CERT_FILE|REQUESTS_CA_BUNDLE)='
while IFS= read -r line; do pass_on+=("$line"); done < <(env | grep -iE "$passed")
for target in "${targets[@]}"; do
    echo "[fresh] make $target"
    # shellcheck disable=SC2086  # a target with its variables
    chroot "$root" /usr/bin/env -i HOME=/root TERM=dumb LANG=C.UTF-8 \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        "${pass_on[@]}" make --no-print-directory -C /src/penstock $target </dev/null
    echo "[fresh] make $target: ok after $SECONDS s"
done
