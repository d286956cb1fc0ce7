# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# What tools/fresh.sh and tools/kernels.sh share, to be sourced: where this machine has its Debian packages from, and a
# place to build a system in that leaves no mount and no process behind, however the script ends.

# The mirror is the one this machine uses: one-line sources ("deb URL suite ...") or deb822 ("URIs: URL").
source_of() { # source_of SUITE: the URL it is served from, or nothing
    local files=()
    for f in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
        [ ! -e "$f" ] || files+=("$f")
    done
    awk -v suite="$1" '
        /^#/ { next }
        FILENAME ~ /\.sources$/ && /^[[:space:]]*$/ { uri = ""; next }
        /^URIs:/ { uri = $2 }
        /^Suites:/ { for (i = 2; i <= NF; i++) if ($i == suite && uri != "") { print uri; exit } }
        /^deb / { for (i = 2; i < NF; i++) if ($i ~ /:\/\// && $(i + 1) == suite) { print $i; exit } }
    ' "${files[@]}" /dev/null
}

mirror() { # mirror SUITE: a suite that this machine does not use is where its own one is
    local url
    url=$(source_of "$1")
    [ -n "$url" ] || url=$(source_of bookworm)
    [ -n "$url" ] || { echo "no source for $1 in /etc/apt; is this machine's mirror elsewhere?" >&2; return 1; }
    echo "$url"
}

# Settings of apt without which the mirror may not be reached: a mirror is a fact of the network, not of the system.
apt_settings() {
    grep -lisE 'proxy|check-valid-until' /etc/apt/apt.conf /etc/apt/apt.conf.d/* || true
}

bootstrap() { # bootstrap SUITE FOLDER LOG PACKAGES: a Debian with no more in it than these
    local script=() url scripts=${DEBOOTSTRAP_DIR:-/usr/share/debootstrap}/scripts
    url=$(mirror "$1")
    [ -e "$scripts/$1" ] || script=("$scripts/sid") # suites that debootstrap has not heard of are made as unstable is
    debootstrap --variant=minbase --include="$4" "$1" "$2" "$url" "${script[@]}" >"$3" 2>&1 ||
        { tail -n 20 "$3"; echo "debootstrap failed; all of it in $3"; return 1; }
}

# Runs a command in a mount and a process namespace of its own and exits as it does; FOLDER is removed then, also when
# this script is told to end. All mounts and processes of the command end with its namespaces, that is, with it.
in_namespaces() { # in_namespaces FOLDER KEEP COMMAND ...
    space_folder=$1 space_keep=$2 space_child=
    shift 2
    leave_space() {
        # unshare takes no notice of SIGTERM; when it is gone, the kernel kills what runs in its namespaces.
        [ -z "$space_child" ] || { kill -KILL "$space_child" 2>/dev/null; wait "$space_child" 2>/dev/null; } || true
        [ "$space_keep" = yes ] || rm -rf --one-file-system "$space_folder"
    }
    trap leave_space EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    unshare --mount --pid --fork --kill-child=KILL --propagation private "$@" </dev/null &
    space_child=$!
    local status=0
    wait "$space_child" || status=$?
    space_child=
    exit $status
}
