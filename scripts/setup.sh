#!/usr/bin/env bash
# Makes .venv with everything that the project needs: the packages that requirements.lock pins, and Horovod, built here.
# Run it as often as you like: it does nothing when nothing has changed, and repairs what a killed run left behind.
set -euo pipefail

# -P: behind a symbolic link the folder is the same folder.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
readonly root venv="$root/.venv"
readonly stamp="$venv/.setup-done" unfinished="$venv/.setup-unfinished"
readonly log="$venv/setup.log" # what pip and the others say; this script shows a line for each phase
readonly needed_gb=12
readonly without='no horovod' # the beginning of the stamp of an environment without it

usage() {
    cat <<'TEXT'
usage: scripts/setup.sh [--force]

Makes .venv (Python, PyTorch and the rest from requirements.lock, Horovod). 3 to 5 minutes and 6 GB the first time;
at once when nothing has changed. A Horovod that cannot be built costs a line, and make run starts torchrun.

  --force   check and install again, even if nothing has changed

Shows a line for each phase, and every 30 seconds how far it is. What pip says goes to .venv/setup.log.

Environment:
  PYTHON                 the Python to make .venv with, 3.11 or later. Default: the first of python3.11, python3.12
                         and python3 that is
  HOROVOD                0: leave Horovod out, which needs no compiler (make run then starts torchrun); 1: insist on it,
                         also where an earlier set-up left it out: exit code 2 where it cannot be built. Default: as
                         the earlier one; the first one builds it if it can
  GPU_OPS, CC_LIST, MPI, CXX, JOBS   see scripts/build_horovod.sh --help
TEXT
}

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 2; }
done_in() { say "$1 (${SECONDS} s so far)"; }

# Sets with_horovod to 1, or to 0.
choose_horovod() {
    with_horovod=${HOROVOD:-1}
    case $with_horovod in
        0 | 1) ;;
        *) die "HOROVOD is $HOROVOD; it can be 0 or 1" ;;
    esac
    if [ -z "${HOROVOD:-}" ] && [[ $(head -n 1 "$stamp" 2>/dev/null) = "$without "* ]]; then with_horovod=0; fi
}

# What an environment was made from; another answer means another set-up. The path is in it since a moved .venv is
# broken; of pyproject.toml, what is installed.
fingerprint() { # WITH_HOROVOD
    local horovod="horovod ${GPU_OPS:-} ${CC_LIST:-} ${MPI:-}"
    if [ "$1" = 0 ]; then horovod=$without; fi
    echo "$horovod at $root"
    cd "$root" && sha256sum requirements.lock scripts/build_horovod.sh
    awk '/^\[/ { wanted = /^\[(build-system|project|tool\.setuptools)/ } wanted' pyproject.toml | sha256sum
}

is_current() {
    [ -f "$stamp" ] && [ ! -e "$unfinished" ] && [ -x "$venv/bin/python" ] || return 1
    # Who can do without Horovod is not harmed by it.
    [ "$(<"$stamp")" = "$(fingerprint "$with_horovod")" ] || [ "$(<"$stamp")" = "$(fingerprint 1)" ]
}

# --- The tools of this machine: one line for each that is missing.

missing=0
lacks() {
    say "missing: $1; on Debian or Ubuntu: apt-get install $2"
    missing=1
}

python_works() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

# Sets python, and complains about what that Python lacks.
check_python() {
    local candidate version candidates=(python3.11 python3.12 python3)
    if [ -n "${PYTHON:-}" ]; then candidates=("$PYTHON"); fi
    python=''
    for candidate in "${candidates[@]}"; do
        if python_works "$candidate"; then python=$candidate; break; fi
    done
    if [ -z "$python" ]; then
        lacks "Python 3.11 or later${PYTHON:+ ($PYTHON is not)}" 'python3.11 python3.11-venv python3.11-dev'
        return
    fi
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    "$python" -c 'import venv, ensurepip' 2>/dev/null || lacks "the venv module of $python" "python$version-venv"
}

check_headers() {
    local version
    [ -n "$python" ] || return 0
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    "$python" -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null ||
        lacks "the header files of $python (Python.h)" "python$version-dev"
}

check_compiler() {
    local compiler=${CXX:-g++}
    command -v "$compiler" >/dev/null || { lacks "$compiler, a C++20 compiler (g++ 10 or later)" g++; return; }
    echo '#include <span>' | "$compiler" -std=c++20 -x c++ -fsyntax-only - 2>/dev/null ||
        lacks "a C++20 compiler ($compiler is too old; g++ 10 or later)" g++
}

# CMake is not among them: requirements.lock brings it. Without what only Horovod's build needs, Horovod is left out,
# unless HOROVOD=1 insists.
check_tools() {
    local needed
    check_python
    command -v git >/dev/null || lacks 'git, which stamps results with their commit' git
    needed=$missing
    if [ "$with_horovod" = 1 ]; then
        check_headers
        check_compiler
        command -v make >/dev/null || lacks 'make' make
    fi
    if [ "$missing" = 0 ]; then return; fi
    if [ "$needed" = 1 ] || [ "${HOROVOD:-}" = 1 ]; then exit 2; fi
    with_horovod=0
}

check_disk() {
    local free_kb
    free_kb=$(df -Pk "$root" | awk 'NR == 2 { print $4 }')
    ((free_kb >= needed_gb * 1024 * 1024)) ||
        die "$root has $((free_kb / 1024 / 1024)) GB of free disk space; about $needed_gb GB are needed"
}

# --- The environment

# A run that was killed while pip was writing leaves packages that pip takes for whole: that environment is made anew.
make_venv() {
    local said
    if [ -e "$unfinished" ]; then
        say 'an earlier set-up was cut off: making .venv anew'
        rm -rf "$venv"
    elif python_works "$venv/bin/python" && "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        return
    fi
    check_disk
    say "making .venv with $python"
    if ! said=$("$python" -m venv --clear "$venv" 2>&1); then
        printf '%s\n' "$said" >&2
        die "$python -m venv failed, as it says above"
    fi
}

# A sign of life for as long as this script lives. A sleep that outlives it must not hold its output open.
tick() {
    while sleep 30 >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do say "still $(pip_is) (${SECONDS} s so far)"; done
}

# pip names every package that it fetches, and says nothing while it unpacks them.
pip_is() {
    if grep -q '^Installing collected' "$log"; then echo 'unpacking packages'; return; fi
    echo "fetching packages, $(grep -Ec '^(Collecting|Processing|Requirement) ' "$log") of $(grep -c '==' "$root/requirements.lock")"
}

# pip_install ARGUMENT...: leaves the mark of an unfinished set-up if it is killed. An error that pip meets itself it
# rolls back.
pip_install() {
    local status=0
    : >"$unfinished"
    "$venv/bin/python" -m pip --disable-pip-version-check --no-input install "$@" >>"$log" 2>&1 || status=$?
    if ((status <= 2)); then rm -f "$unfinished"; fi
    return "$status"
}

explain_pip_failure() {
    local why
    if grep -Eq 'NewConnectionError|NameResolutionError|ConnectTimeout|Network is unreachable' "$log"; then
        die "no network: the Python package index cannot be reached; try again when it can (log: $log)"
    elif grep -q 'No space left on device' "$log"; then
        die "the disk is full (log: $log)"
    fi
    why=$(grep '^ERROR: ' "$log" | head -n 1) || true
    die "pip failed${why:+: ${why#ERROR: }}; all that it said is in $log"
}

# The project is installed as the path of its folder, so that its packages are found from anywhere. Python reads that
# file in the locale's encoding, and does not start where it cannot: LC_ALL=C and a folder with an umlaut in its name.
point_to_project() {
    local entry
    for entry in "$venv"/lib/python3*/site-packages/__editable__.wirebench-*.pth; do
        if [ -f "$entry" ]; then echo ../../../.. >"$entry"; fi # from there up to the folder that .venv is in
    done
}

install_packages() {
    local ticker status=0
    say 'installing the packages of requirements.lock (2.5 GB to fetch the first time; 1 to 3 minutes)'
    tick 9<&- &
    ticker=$!
    # shellcheck disable=SC2064 # its number is known now
    trap "kill $ticker 2>/dev/null || true" EXIT
    pip_install --retries 2 -r "$root/requirements.lock" || status=$?
    kill "$ticker"
    [ "$status" = 0 ] || explain_pip_failure
    pip_install --quiet --no-deps --no-build-isolation --editable "$root" || explain_pip_failure
    point_to_project
    done_in 'packages are installed'
}

# --- Horovod

# The builder says in one line why there is no wheel.
try_horovod() {
    local wheel
    wheel=$(bash "$root/scripts/build_horovod.sh" "$venv/bin/python" 9<&- | tail -n 1) || return 1
    [ -f "$wheel" ] || return 1
    pip_install --quiet --no-deps --force-reinstall "$wheel" && horovod_loads && return
    if [ "${GPU_OPS:-}" = none ]; then
        say "Horovod does not load here (log: $log)"
        return 1
    fi
    say 'Horovod does not load here; trying a build for CPU tensors only'
    GPU_OPS=none try_horovod
}

# The interface is named so that the machine's own name needs no address.
horovod_loads() {
    HOROVOD_GLOO_IFACE=lo "$venv/bin/python" -c 'import horovod.torch as hvd; hvd.init(); assert hvd.size() == 1' \
        >>"$log" 2>&1
}

# Sets with_horovod to 0 where it cannot be built, and leaves none that does not load. HOROVOD=1 insists on it.
install_horovod() {
    if try_horovod; then
        done_in 'Horovod is installed'
        return
    fi
    with_horovod=0
    remove_horovod
    [ "${HOROVOD:-}" != 1 ] || exit 2
}

# One that was built for other packages would load, or not, and be taken for this environment's.
remove_horovod() {
    "$venv/bin/python" -m pip --quiet uninstall --yes horovod >>"$log" 2>&1 || true
}

check_imports() {
    "$venv/bin/python" -c 'import torch, torchvision' >>"$log" 2>&1 ||
        die "torch does not load (log: $log); remove .venv and try again"
}

main() {
    local force=''
    case ${1:-} in
        -h | --help) usage; return ;;
        --force) force=1 ;;
        ?*) usage >&2; exit 2 ;;
    esac
    choose_horovod
    if [ -z "$force" ] && is_current; then return; fi
    # In an activated .venv, its own Python would be the first that is found, and .venv may have to be made anew.
    PATH=:$PATH:
    PATH=${PATH//":$venv/bin:"/:} PATH=${PATH#:} PATH=${PATH%:}
    trap 'exit 130' INT # without it, bash goes on after a pip that was interrupted
    check_tools
    # Every pip that installs holds it too, so one that outlives a killed run is waited for.
    exec 9<"${BASH_SOURCE[0]}"
    flock -n 9 || { say 'waiting for another set-up to end'; flock 9; }
    if [ -z "$force" ] && is_current; then return; fi

    make_venv
    rm -f "$stamp"
    : >"$log"
    install_packages
    if [ "$with_horovod" = 1 ]; then install_horovod; else remove_horovod; fi
    check_imports
    fingerprint "$with_horovod" >"$stamp"
    if [ "$with_horovod" = 1 ]; then
        done_in 'done'
    else
        done_in 'done, without Horovod: make run starts torchrun; make setup HOROVOD=1 builds Horovod'
    fi
}

main "$@"; exit # on one line: an edit of this file while it runs does no harm
