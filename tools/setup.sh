#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Sets this checkout up: Debian packages, then a Python environment in .venv, and for "ci", "bench" and "long" a second
# one with DeepSpeed, in .venv-deepspeed. Usage: tools/setup.sh [build|base|test|ci|bench|long]
#
# "build" is enough to build the Python package, and has neither torch nor anything else that the package does not need.
#
# It may be called as often as one likes: what is there is found in a moment. Outside the checkout it changes nothing but
# the installed packages, and those only as root or where sudo asks no password; otherwise it says what to run.
set -euo pipefail
cd "$(dirname "$0")/.."
want=${1:-base}
case "$want" in build | base | test | ci | bench | long) ;; *)
    echo "setup: there is no package set '$want'; choose build, base, test, ci, bench or long" >&2
    exit 2
    ;;
esac
logs=build/.setup
mkdir -p "$logs"
say() { printf '[setup %4ds] %s\n' "$SECONDS" "$*"; }

# --- packages ---------------------------------------------------------------------------------------------------------

sets() { # which sets a set includes
    case "$want" in
    build | base) ;;
    test | ci) echo test ;;
    bench) echo bench ;;
    long) echo test bench long ;;
    esac
    [ "$want" = build ] || echo base
    echo build
}

missing_packages() {
    local wanted installed
    wanted=$(for s in $(sets); do awk -v s="$s" '$1 == s { print $2 }' tools/apt-packages.txt; done | sort -u)
    # shellcheck disable=SC2086  # a list of names; dpkg-query fails when it does not know one
    installed=$({ dpkg-query -W -f '${db:Status-Status} ${Package}\n' $wanted 2>/dev/null || true; } |
        awk '$1 == "installed" { print $2 }' | sort -u)
    comm -23 <(echo "$wanted") <(echo "$installed")
}

apt_show_progress() { # one line a few seconds instead of apt's thousand
    awk -v total="$1" '
        /^Get:/ { fetched++ }
        /^Unpacking / { unpacked++ }
        /^Setting up / { set_up++ }
        systime() >= next_s {
            next_s = systime() + 5
            printf "[setup]   fetched %d, unpacked %d, set up %d\n", fetched, unpacked, set_up; fflush()
        }
        END { printf "[setup]   fetched %d, unpacked %d, set up %d packages\n", fetched, unpacked, set_up }'
}

install_packages() {
    local as_root=()
    if [ "$(id -u)" != 0 ]; then
        if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
            as_root=(sudo -n env DEBIAN_FRONTEND=noninteractive)
        else
            echo "setup: these Debian packages are missing, and installing them needs root. Run this, then the same make again:" >&2
            echo >&2
            echo "    sudo apt-get update && sudo apt-get install -y --no-install-recommends $*" >&2
            exit 1
        fi
    fi
    export DEBIAN_FRONTEND=noninteractive
    say "apt: installing $# packages and what they need: $*"
    say "apt: update"
    "${as_root[@]}" apt-get update -q >"$logs/apt.log" 2>&1 || apt_failed
    "${as_root[@]}" apt-get install -q -y --no-install-recommends "$@" </dev/null 2>&1 |
        tee -a "$logs/apt.log" | apt_show_progress $# || apt_failed
}

apt_failed() {
    tail -n 25 "$logs/apt.log" >&2
    echo "setup: apt-get failed (above; all of it in $logs/apt.log). Fix what it names and run the same make again." >&2
    exit 1
}

if command -v dpkg-query >/dev/null && command -v apt-get >/dev/null; then
    missing=$(missing_packages)
    # shellcheck disable=SC2086  # a list of names
    [ -z "$missing" ] || install_packages $missing
else
    say "this is no Debian; these are needed under whatever names they have here:" \
        "$(for s in $(sets); do awk -v s="$s" '$1 == s { print $2 }' tools/apt-packages.txt; done | sort -u | tr '\n' ' ')"
fi

# --- Python -----------------------------------------------------------------------------------------------------------

# The system's Python first: its headers come with python3-dev. $PYTHON overrides.
find_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} /usr/bin/python3 python3 python3.14 python3.13 python3.12 python3.11 python3.10; do
        if command -v "$candidate" >/dev/null && "$candidate" -c '
import os, sys, sysconfig, venv, ensurepip
ok = sys.version_info >= (3, 10) and os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))
sys.exit(not ok)' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    echo "setup: no Python of 3.10 or later with venv and Python.h was found; name one: make PYTHON=/path/to/python3 ..." >&2
    return 1
}

# pip shows its progress itself; its cache is off, so nothing is left outside the checkout.
pip_install() { # pip_install FILE [pip's own options ...]: FILE lists what to install
    local list=$1
    shift
    if ! .venv/bin/python -m pip --disable-pip-version-check "$@" -r "$list" </dev/null > >(tee "$logs/pip.log" |
        sed -u -n -E '/^ *(Collecting|Downloading|Building|Installing|ERROR|Successfully)/ { s/^(.{110}).+/\1 .../; p }') 2>&1; then
        tail -n 15 "$logs/pip.log" >&2
        echo "setup: pip could not install $list (above; all of it in $logs/pip.log)." >&2
        echo "       Without a network, put the packages in a folder and set PIP_FIND_LINKS to it." >&2
        exit 1
    fi
}

list=tools/requirements.txt
[ "$want" != build ] || list=tools/requirements-build.txt
stamp=.requirements-$(cat "$list" tools/requirements-build.txt | cksum | tr ' ' '-')
# An environment with everything has what building needs.
[ "$want" != build ] || ! compgen -G '.venv/.requirements-*' >/dev/null || stamp=$(cd .venv && ls -d .requirements-* | head -n 1)
if [ ! -x .venv/bin/python ] || [ ! -e ".venv/$stamp" ]; then
    python=$(find_python)
    say "python: making .venv with $("$python" --version) ($python)"
    rm -rf .venv
    "$python" -m venv .venv
    say "python: installing $list into .venv$([ "$want" = build ] || echo ' (torch is the large one)')"
    pip_install "$list" install --no-cache-dir
    touch ".venv/$stamp"
fi

# Type checkers and other frameworks, which only tests use.
test_stamp=.test-requirements-$(cksum <tools/requirements-test.txt | tr ' ' '-')
if [ "$want" != build ] && [ "$want" != base ] && [ ! -e ".venv/$test_stamp" ]; then
    say "python: installing tools/requirements-test.txt into .venv (JAX is the large one)"
    pip_install tools/requirements-test.txt install --no-cache-dir --no-deps
    touch ".venv/$test_stamp"
fi

# DeepSpeed is what tests and benchmarks compare with, and needs a dozen packages that nothing else does. So it has an
# environment of its own, with .venv's packages (torch, penstock, pytest) under it.
stamp=$stamp+$(cksum <tools/requirements-deepspeed.txt | tr ' ' '-')
if [[ $want =~ ^(ci|bench|long)$ ]] && [ ! -e ".venv-deepspeed/$stamp" ]; then
    say "python: making .venv-deepspeed over .venv, and installing tools/requirements-deepspeed.txt into it"
    rm -rf .venv-deepspeed
    .venv/bin/python -m venv --without-pip .venv-deepspeed
    # addsitedir, and not the mere path: penstock_deepnvme.pth in there is to be read as well.
    echo "import site; site.addsitedir($(.venv/bin/python -c 'import sysconfig; print(repr(sysconfig.get_path("purelib")))'))" \
        >"$(.venv-deepspeed/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/under.pth"
    # Its dependencies are in the list, and torch in .venv: pip is to look for nothing. It is a source archive without
    # anything to compile, which is built with the setuptools of .venv.
    DS_BUILD_OPS=0 DS_ACCELERATOR=cpu pip_install tools/requirements-deepspeed.txt \
        --python .venv-deepspeed/bin/python install --no-cache-dir --no-deps --no-build-isolation --use-pep517
    touch ".venv-deepspeed/$stamp"
fi
[ "$SECONDS" -lt 2 ] || say "done"
