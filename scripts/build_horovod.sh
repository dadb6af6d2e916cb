#!/usr/bin/env bash
# Builds the Horovod wheel for one Python and its PyTorch, or finds it in the cache. See usage below.
#
# Horovod's last release asks for C++14 and for an old CMake; PyTorch's headers need C++20. The sdist is built
# unmodified: environment variables, a CMake toolchain file and a header say from outside what it should say itself.
set -euo pipefail

readonly HOROVOD_VERSION=0.28.1
readonly RECIPE=2 # raise it when a change below makes another wheel
readonly OLDEST_CMAKE=3.21

usage() {
    cat <<'TEXT'
usage: scripts/build_horovod.sh [--key] PYTHON

Builds Horovod 0.28.1 for the torch that PYTHON has, and prints the wheel's path as the last line of standard output.
A wheel built before is taken from ${XDG_CACHE_HOME:-~/.cache}/wirebench/KEY/. Progress goes to standard error.
PYTHON needs torch, setuptools, wheel and packaging (requirements.lock has them), and its headers (Python.h).

  --key     print KEY, the name of the cache folder, and build nothing

Environment:
  GPU_OPS   what carries GPU tensors. nccl (the default where torch is a CUDA build and nvcc of the same major
            version is there; such a wheel works on machines without a GPU too; if its build fails, none is built);
            gloo: staged through host memory, which lets several processes share one GPU; none: CPU tensors only
  CC_LIST   compute capabilities to compile for, such as 80,90. Default: those of data-centre and desktop GPUs
            since Turing that nvcc knows
  MPI       1: build MPI in (needs libopenmpi-dev); only: MPI and no Gloo, as conda-forge's build. Default: Gloo only
  CMAKE     the cmake to use, 3.21 or later. Default: the one beside PYTHON, else the one on the PATH
  CXX       the C++20 compiler to use. Default: g++
  JOBS      compilers that run at once. Default: one per core
TEXT
}

say() { printf 'horovod: %s\n' "$*" >&2; }
die() { say "$*"; exit 2; }

work='' build=''

# shellcheck disable=SC2317 # it is called by a trap
clean_up() {
    # The build is a process group of its own, so that the compilers go as well.
    [ -z "$build" ] || kill -TERM -- "-$build" 2>/dev/null || true
    [ -z "$work" ] || rm -rf "$work"
}

# Sets py_tag, torch_version, torch_cuda (none without CUDA), nccl (- if absent), glibc and machine.
read_python() {
    local facts # a line each: a folder's name may hold spaces
    facts=$("$python" - <<'PY'
import importlib.util, pathlib, platform, runpy, sys, sysconfig

def folder(name):
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None
    return spec and pathlib.Path(next(iter(spec.submodule_search_locations)))

if not folder("torch"):
    sys.exit(1)
# Reading version.py takes no time; importing torch takes seconds.
torch = runpy.run_path(str(folder("torch") / "version.py"))
print("cp%d%d" % sys.version_info[:2], torch["__version__"], torch.get("cuda") or "none",
      folder("nvidia.nccl") or "-", platform.libc_ver()[1] or "unknown", platform.machine(), sep="\n")
PY
    ) || die "$python has no torch; install requirements.lock first"
    { read -r py_tag; read -r torch_version; read -r torch_cuda; read -r nccl; read -r glibc; read -r machine; } \
        <<<"$facts"
}

# Sets cuda_home and cuda_version, both empty where there is no nvcc. The nvcc on the PATH may be a wrapper script, so
# it is asked for its toolkit's folder.
find_cuda() {
    local nvcc top
    cuda_home='' cuda_version=''
    nvcc=$(command -v "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" || command -v nvcc) || return 0
    top=$("$nvcc" --dryrun -x cu /dev/null 2>&1 | sed -n 's/^#\$ TOP=//p') || return 0
    cuda_home=$(readlink -f "$top") || return 0
    cuda_version=$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
}

# Sets variant: cpu, or the GPU operations with the toolkit's version. Says why, where a toolkit is there and not used.
choose_variant() {
    local gpu_ops=${GPU_OPS:-nccl}
    variant=cpu
    case $gpu_ops in
        nccl | gloo) ;;
        none) return ;;
        *) die "GPU_OPS is $gpu_ops; it can be nccl, gloo or none" ;;
    esac
    if [ "$torch_cuda" = none ]; then return; fi
    find_cuda
    if [ -z "$cuda_home" ]; then return; fi
    if [ "${cuda_version%%.*}" != "${torch_cuda%%.*}" ]; then
        say "nvcc is CUDA $cuda_version and torch CUDA $torch_cuda: building for CPU tensors only"
    elif [ "$gpu_ops$nccl" = nccl- ]; then
        say 'the package nvidia-nccl is not installed: building for CPU tensors only'
    else
        variant=$gpu_ops-cuda$cuda_version${CC_LIST:+-cc$CC_LIST}
    fi
}

# Sets mpi to what the cache's key says of it.
choose_mpi() {
    case ${MPI:-0} in
        0) mpi='' ;;
        1) mpi=-mpi ;;
        only) mpi=-mpi-only ;;
        *) die "MPI is $MPI; it can be 0, 1 or only" ;;
    esac
}

cache_key() {
    echo "horovod-$HOROVOD_VERSION-r$RECIPE-$py_tag-torch$torch_version-$variant$mpi-$machine-glibc$glibc"
}

find_cmake() {
    local found=${CMAKE:-$(dirname "$python")/cmake} version
    [ -x "$found" ] || found=$(command -v "${CMAKE:-cmake}") ||
        die "cmake is missing; install it with: apt-get install cmake (or pip install cmake)"
    version=$("$found" --version | sed -n 's/^cmake version \([0-9.]*\).*/\1/p')
    printf '%s\n' "$OLDEST_CMAKE" "$version" | sort -VC ||
        die "cmake $version is too old, $OLDEST_CMAKE or later is needed; install it with: pip install cmake"
    HOROVOD_CMAKE=$(realpath -s "$found")
    export HOROVOD_CMAKE
}

# Horovod forgets HOROVOD_GLOO_IFACE where it connects the ranks: traffic goes to whatever address the machine's own
# name has, and a name without an address is a segmentation fault. So Gloo is told the interface's address for a name.
write_host_name_fix() {
    cat >"$work/host_name.h" <<'CPP'
#include <cstdlib>
#include <cstring>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

static inline int gloo_host_name(char* name, size_t length) {
  const char* wanted = std::getenv("HOROVOD_GLOO_IFACE");
  struct ifaddrs* all = nullptr;
  int failed = 1;
  if (wanted != nullptr && getifaddrs(&all) == 0) {
    for (auto* one = all; one != nullptr && failed; one = one->ifa_next)
      if (one->ifa_addr && one->ifa_addr->sa_family == AF_INET && std::strcmp(one->ifa_name, wanted) == 0)
        failed = getnameinfo(one->ifa_addr, sizeof(sockaddr_in), name, length, nullptr, 0, NI_NUMERICHOST);
    freeifaddrs(all);
  }
  return failed ? gethostname(name, length) : 0;
}
#define gethostname gloo_host_name
CPP
}

# CMake reads this file twice: before it tries the compiler, and again right after project(horovod).
#
# Most of a build is reading headers, so files are compiled together: Gloo's, Horovod's own, and those that read
# PyTorch's headers. It takes 40 % of the processor's time that a file at a time takes.
write_toolchain() {
    cat >"$work/toolchain.cmake" <<'CMAKE'
set(CMAKE_PROJECT_horovod_INCLUDE "${CMAKE_CURRENT_LIST_FILE}")
set(CMAKE_CXX14_STANDARD_COMPILE_OPTION "-std=c++20")
function(compile_together)
    set_target_properties(pytorch PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
    get_target_property(sources pytorch SOURCES)
    foreach(source IN LISTS sources)
        string(REGEX REPLACE ".*/horovod/([a-z]+)/.*" "\\1" part "${source}")
        set_source_files_properties(${source} TARGET_DIRECTORY pytorch PROPERTIES UNITY_GROUP ${part})
    endforeach()
    if(TARGET gloo)
        set_target_properties(gloo PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
        # Its ReductionFunction is another one than that of algorithm.h.
        set_source_files_properties(third_party/gloo/gloo/allreduce_local.cc TARGET_DIRECTORY gloo
            PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    endif()
    if(TARGET compatible_horovod_cuda_kernels) # for frameworks with the C++ ABI of before 2015
        set_target_properties(compatible_horovod_cuda_kernels PROPERTIES EXCLUDE_FROM_ALL TRUE)
    endif()
endfunction()
if(PROJECT_NAME STREQUAL horovod)
    set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -DNDEBUG") # no -g: the wheel is stripped. Horovod makes an -O3 of it
    cmake_language(DEFER CALL compile_together)
endif()
CMAKE
}

set_build_environment() {
    write_toolchain
    write_host_name_fix
    export CMAKE_TOOLCHAIN_FILE=$work/toolchain.cmake
    export CMAKE_POLICY_VERSION_MINIMUM=3.5 # CMake 4 refuses what the bundled gloo asks for
    export CMAKE_GENERATOR='Unix Makefiles' # setup.py passes VERBOSE=1, which ninja takes for a target
    CXXFLAGS="${CXXFLAGS:-} -include cstdint -include string -include stdexcept" # not implied from gcc 13 on
    export CXXFLAGS="$CXXFLAGS -include $work/host_name.h"
    export LDFLAGS="${LDFLAGS:-} -s"        # stripped: 1 MB instead of 20
    export MAKEFLAGS=-j${JOBS:-$(env -u OMP_NUM_THREADS nproc)}    # also replaces what a calling make put there
    export TMPDIR=$work                     # pip's own build folders go with ours
    unset MAKELEVEL MFLAGS
    export HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1
    if [ "$mpi" = -mpi-only ]; then export HOROVOD_WITHOUT_GLOO=1; else export HOROVOD_WITH_GLOO=1; fi
    if [ -z "$mpi" ]; then export HOROVOD_WITHOUT_MPI=1; else export HOROVOD_WITH_MPI=1; fi
}

# GPUs that this nvcc can compile for, out of those that people train on.
known_capabilities() {
    local known wanted list=''
    known=$("$cuda_home/bin/nvcc" --list-gpu-code)
    for wanted in 75 80 86 89 90 100 120; do
        if grep -qx "sm_$wanted" <<<"$known"; then list+=,$wanted; fi
    done
    echo "${list#,}"
}

set_gpu_environment() {
    export CUDA_HOME=$cuda_home HOROVOD_CUDA_HOME=$cuda_home CUDACXX=$cuda_home/bin/nvcc PATH=$cuda_home/bin:$PATH
    HOROVOD_BUILD_CUDA_CC_LIST=${CC_LIST:-$(known_capabilities)}
    export HOROVOD_BUILD_CUDA_CC_LIST
    if [[ $variant = nccl-* ]]; then
        mkdir -p "$work/nccl"
        ln -sf "$nccl/lib/libnccl.so.2" "$work/nccl/libnccl.so" # the pip package lacks the name that linkers look for
        export HOROVOD_GPU_OPERATIONS=NCCL HOROVOD_NCCL_LINK=SHARED
        export HOROVOD_NCCL_INCLUDE=$nccl/include HOROVOD_NCCL_LIB=$work/nccl
    fi
}

# Horovod turns CUDA on wherever torch finds a toolkit, asked or not. So its CMake files, which ask Python everything
# with `python -c`, get one whose torch says that it has no CUDA.
set_cpu_environment() {
    unset CUDA_HOME HOROVOD_CUDA_HOME HOROVOD_GPU_OPERATIONS HOROVOD_NCCL_LINK HOROVOD_NCCL_INCLUDE HOROVOD_NCCL_LIB
    cat >"$work/python" <<SHELL
#!/bin/sh
exec "$python" -c "import torch
torch.version.cuda = None
\$2"
SHELL
    chmod +x "$work/python"
    cat >>"$work/toolchain.cmake" <<CMAKE
set(PYTHON_EXECUTABLE "$work/python" CACHE FILEPATH "" FORCE)
set(CMAKE_CUDA_COMPILER NOTFOUND) # a broken toolkit would stop the build
set(CMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit TRUE)
CMAKE
}

percent_done() { { echo 0; grep -Eo '^ *\[ *[0-9]+%\]' "$1"; } | tail -n 1 | tr -cd 0-9; }

# compile LOG: pip wheel in the background, a line of progress every 30 seconds in front.
compile() {
    local log=$1 start=$SECONDS status=0 seconds
    set -m # its own process group; see clean_up. It does not hold the lock, so nobody waits for an orphan
    "$python" -m pip wheel --verbose --no-input --no-cache-dir --no-build-isolation --no-deps --no-binary horovod \
        --wheel-dir "$work/wheel" "horovod==$HOROVOD_VERSION" >"$log" 2>&1 </dev/null 8>&- &
    build=$!
    set +m
    while kill -0 "$build" 2>/dev/null; do
        sleep 1
        seconds=$((SECONDS - start))
        if ((seconds % 30 == 0)); then say "building, $(percent_done "$log") % after $seconds s"; fi
    done
    wait "$build" || status=$?
    build='' && return "$status"
}

build_variant() {
    say "building $variant with $(env -u OMP_NUM_THREADS nproc) cores for $py_tag and torch $torch_version; 1 to 2 minutes on two (log: $1)"
    if [ "$variant" = cpu ]; then set_cpu_environment; else set_gpu_environment; fi
    compile "$1"
}

report_failure() {
    local why
    why=$({ grep ' error: ' "$1" || grep -E '^ *(CMake Error|ERROR: )' "$1"; } | head -n 1 | sed 's/^ *//') || true
    say "the build failed${why:+: $why}; its log is $1"
}

# The wheel appears in its cache folder by a rename, so nobody ever sees half of it.
store() {
    local wheel=$1 folder=$2
    mkdir -p "$folder"
    cp "$wheel" "$folder/.partial.$$"
    mv "$folder/.partial.$$" "$folder/$(basename "$wheel")"
}

cached_wheel() {
    local wheel
    for wheel in "$cache/$(cache_key)"/*.whl; do
        if [ -f "$wheel" ]; then echo "$wheel"; return; fi
    done
    return 1
}

build_and_store() {
    local log
    log=$cache/$(cache_key).log
    if build_variant "$log"; then
        store "$work"/wheel/horovod-*.whl "$cache/$(cache_key)"
        return
    fi
    report_failure "$log"
    return 1
}

main() {
    local key_only=''
    case ${1:-} in
        -h | --help) usage; return ;;
        --key) key_only=1; shift ;;
    esac
    [ $# = 1 ] || { usage >&2; exit 2; }
    python=$(command -v "$1") || die "$1 is not a program"
    python=$(realpath -s "$python") # absolute, but still the virtual environment's own link
    cache=${XDG_CACHE_HOME:-$HOME/.cache}/wirebench
    read_python
    choose_variant
    choose_mpi
    if [ -n "$key_only" ]; then cache_key; return; fi
    if cached_wheel; then return; fi

    find_cmake
    trap clean_up EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    work=$(mktemp -d)
    mkdir -p "$cache"
    # Two builds at once would only share the cores: the second waits, and then finds the wheel.
    exec 8>"$cache/.lock"
    flock -n 8 || { say 'waiting for another build to end'; flock 8; }
    if cached_wheel; then return; fi
    set_build_environment
    if ! build_and_store; then
        [ "$variant" != cpu ] || exit 1
        say 'falling back to a build for CPU tensors only'
        variant=cpu
        build_and_store || exit 1
    fi
    cached_wheel
}

main "$@"; exit # on one line: an edit of this file while it runs does no harm
