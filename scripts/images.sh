#!/usr/bin/env bash
# Builds a container image of the Dockerfile, and trains in it to show that it works. See usage below.
#
# With a Docker engine this is docker build and docker run. Without one, podman and buildah do the same with nothing but
# chroot, on a base image that debootstrap makes: no daemon, no image registry, no control groups.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly root suite=bookworm needed_gb=25
readonly smoke_config=configs/smoke.toml smoke_ranks=4
readonly cache=${XDG_CACHE_HOME:-$HOME/.cache}/wirebench

usage() {
    cat <<TEXT
usage: scripts/images.sh cpu|gpu [--smoke] [--keep]

Builds the Dockerfile's target as the image wirebench:cpu or wirebench:gpu. Where no Docker engine answers, as root:
podman and buildah build it, in an empty store of its own, on Debian's $suite from the mirror that apt uses here and
with the package indexes that pip uses here. That needs $needed_gb GB of disk space for a while, below
\${XDG_CACHE_HOME:-~/.cache}/wirebench/.

  --smoke   train $smoke_config with $smoke_ranks processes in the image, as its user, and show the record
  --keep    keep that store, and say how to use it. Without this it is removed, however the build ends

Environment, where no Docker engine answers:
  DEBIAN_MIRROR  URL of the mirror to make the base image from. Default: the Debian one among apt's sources
TEXT
}

say() { printf 'images: %s\n' "$*" >&2; }
die() { say "$*"; exit 2; }
failed() { say "$*"; exit 1; }
done_in() { say "$1 (${SECONDS} s so far)"; }

# --- With a Docker engine

docker_answers() { command -v docker >/dev/null && docker info >/dev/null 2>&1; }

with_docker() {
    docker build --target "$target" --tag "wirebench:$target" "$root" || failed "the build of $target failed"
    done_in "wirebench:$target is built"
    if [ -z "$smoke" ]; then return; fi
    local volume=wirebench-smoke-$$ # a new volume begins as the image's folder, with its owner
    # shellcheck disable=SC2064 # the name is known now
    trap "docker volume rm --force $volume >/dev/null" EXIT
    docker run --rm --init --env NP=$smoke_ranks --volume "$volume:/app/results" "wirebench:$target" $smoke_config ||
        failed 'the smoke run failed'
    docker run --rm --volume "$volume:/app/results" --entrypoint wirebench "wirebench:$target" show --latest ||
        failed 'the smoke run left no record'
    done_in "$smoke_ranks processes trained $smoke_config in the image"
}

# --- Without one: nothing is left behind, and nothing outlives this script

work='' child='' ticker=''
exec 3>&2 # signs of life go to the caller, also while a command's output goes to a file

# run WHAT COMMAND...: in a process group of its own, so that all of it can be ended; a sign of life every 15 seconds.
run() {
    local what=$1 status=0
    shift
    while sleep 15 && kill -0 $$ 2>/dev/null; do say "still $what (${SECONDS} s so far)"; done >/dev/null 2>&3 &
    ticker=$!
    set -m
    "$@" </dev/null 3>&- &
    child=$!
    set +m
    wait "$child" || status=$?
    child=''
    end_ticker
    return "$status"
}

end_ticker() {
    [ -z "$ticker" ] || kill "$ticker" 2>/dev/null || true
    ticker=''
}

# shellcheck disable=SC2317 # the trap again
mounts_below() { awk -v folder="$1/" 'index($2, folder) == 1 { print $2 }' /proc/mounts | sort -r; }

# shellcheck disable=SC2317 # it is called by a trap
clean_up() {
    local mount
    end_ticker
    if [ -n "$child" ]; then
        kill -TERM -- "-$child" 2>/dev/null || true
        wait "$child" || true
    fi
    if [ -z "$work" ]; then return; fi
    # A debootstrap that is cut off leaves /proc mounted, and podman its store: nothing below a mount is ever removed.
    for mount in $(mounts_below "$work"); do umount "$mount" || umount --lazy "$mount"; done
    if [ -n "$(mounts_below "$work")" ]; then say "$work cannot be removed: it holds mounts"; return; fi
    say 'removing the store'
    rm -rf --one-file-system "$work"
}

# --- What building without an engine needs

check_tools() {
    local tool missing=()
    for tool in podman buildah debootstrap python3; do
        command -v "$tool" >/dev/null || missing+=("$tool")
    done
    [ ${#missing[@]} = 0 ] || die 'no Docker engine answers; to build without one, on Debian or Ubuntu:' \
        "apt-get install --no-install-recommends ${missing[*]}"
    [ "$(id -u)" = 0 ] || die 'no Docker engine answers; to build without one, run this as root (it uses chroot)'
    [ -f "$authorities" ] || die "missing: $authorities; on Debian or Ubuntu: apt-get install ca-certificates"
}
readonly authorities=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}

check_disk() {
    local free_kb
    free_kb=$(df -Pk "$cache" | awk 'NR == 2 { print $4 }')
    ((free_kb >= needed_gb * 1024 * 1024)) ||
        die "$cache has $((free_kb / 1024 / 1024)) GB of free disk space; about $needed_gb GB are needed"
    mkdir "$work"/{lower,upper,scratch,merged}
    (cd "$work" && mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=scratch merged 2>/dev/null) ||
        die "overlay mounts do not work in $cache; set XDG_CACHE_HOME to a folder on ext4 or xfs"
    umount "$work/merged"
}

# podman and buildah look here for their store, not in this machine's own.
make_store() {
    mkdir -p "$cache"
    work=$(mktemp -d "$cache/images.XXXXXX")
    check_disk
    export CONTAINERS_STORAGE_CONF=$work/storage.conf TMPDIR=$work/tmp
    mkdir "$TMPDIR"
    cat >"$CONTAINERS_STORAGE_CONF" <<TOML
[storage]
driver = "overlay"
graphroot = "$work/store"
runroot = "$work/run"
TOML
}

# --- The base image, and what the build borrows from this host: by mounts, so that none of it stays in the image

mount_in() { volumes+=(--volume "$1:$2:ro"); }

# first_repository NAME: URL of apt's first repository whose path ends in NAME.
first_repository() {
    # shellcheck disable=SC2016 # apt's own variable
    apt-get indextargets --format '$(REPO_URI)' | sed -n "\|/$1/*\$|{p;q}"
}

make_base() {
    local mirror=${DEBIAN_MIRROR:-$(first_repository debian)}
    [ -n "$mirror" ] || die 'apt has no mirror of Debian here; set DEBIAN_MIRROR to the URL of one'
    run 'making the base image' debootstrap --variant=minbase "$suite" "$work/base" "$mirror" >"$work/log" 2>&1 ||
        { tail -n 5 "$work/log" >&2; failed 'debootstrap failed; it ended with the lines above'; }
    share_apt_settings "$mirror" "$(first_repository debian-security)"
    : >"$work/base/etc/apt/sources.list"
    rm -rf "$work/base/var/cache/apt/archives"/*.deb "$work/base/var/lib/apt/lists"/*
    tar -C "$work/base" -cf "$work/base.tar" .
    run 'importing the base image' podman import --quiet "$work/base.tar" "$base_image" >"$work/log" 2>&1 ||
        { cat "$work/log" >&2; failed 'podman import failed'; }
    rm -rf --one-file-system "$work/base" "$work/base.tar"
    done_in 'the base image is made'
}

share_apt_settings() {
    printf 'deb %s %s main\n' "$1" "$suite" >"$work/sources.list"
    if [ -n "$2" ]; then printf 'deb %s %s-security main\n' "$2" "$suite" >>"$work/sources.list"; fi
    apt-config dump --format '%F "%v";%n' Acquire::http Acquire::https Acquire::Retries Acquire::Check-Valid-Until \
        Acquire::Check-Date >"$work/apt.conf"
    echo 'Acquire::https::CAInfo "/mnt/authorities.pem";' >>"$work/apt.conf"
    mount_in "$work/sources.list" /etc/apt/sources.list
    mount_in "$work/apt.conf" /etc/apt/apt.conf.d/90-build
}

# pip's indexes, and the folders of packages among them, as they are set here.
share_pip_settings() {
    local folder number=0
    if ! python3 -c 'import pip' 2>/dev/null; then
        say 'python3 has no pip here, so the build goes without settings for it'
        return
    fi
    python3 - "$work/pip.conf" <<'PY' >"$work/folders" || failed 'pip config list failed'
import ast, pathlib, subprocess, sys

kept = "index-url extra-index-url find-links no-index trusted-host proxy timeout default-timeout retries".split()
listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], stdout=subprocess.PIPE, text=True, check=True)
settings, folders = {"cert": "/mnt/authorities.pem"}, []

def inside(word):
    scheme = "file://" if word.startswith("file://") else ""
    path = pathlib.Path(word[len(scheme):])
    if not (path.is_absolute() and path.is_dir()):
        return word
    # An index names files that lie beside its own folder; a plain folder holds them.
    top = path.parent if scheme else path
    if top not in folders:
        folders.append(top)
    return f"{scheme}/mnt/packages-{folders.index(top)}/{path.relative_to(top)}"

# Settings from the environment are listed first, and win.
for line in listed.stdout.splitlines():
    name, _, value = line.partition("=")
    section, _, key = name.rpartition(".")
    if section in (":env:", "global", "install") and key in kept:
        settings.setdefault(key, " ".join(map(inside, ast.literal_eval(value).split())))

pathlib.Path(sys.argv[1]).write_text("[global]\n" + "".join(f"{key} = {value}\n" for key, value in settings.items()))
print(*folders, sep="\n")
PY
    mount_in "$work/pip.conf" /etc/pip.conf
    while read -r folder; do
        if [ -n "$folder" ]; then mount_in "$folder" "/mnt/packages-$((number++))"; fi
    done <"$work/folders"
}

share_authorities() {
    cp "$authorities" "$work/authorities.pem"
    mount_in "$work/authorities.pem" /mnt/authorities.pem
}

# --- Building and running

# One layer a stage: every commit reads and writes a layer whole, and one of them has 5 GB.
build() {
    run "building $target" podman build --isolation chroot --layers=false --force-rm --pull=never --format docker \
        "${volumes[@]}" --build-arg "BASE_IMAGE=$base_image" --target "$target" --tag "$image" "$root" >&2 ||
        failed "the build of $target failed; what went wrong is above"
    done_in "$image is built, $(($(podman image inspect --format '{{.Size}}' "$image") / 10 ** 6)) MB"
}

# buildah run does not look at the entry, so it is read from the image. The user and the variables are the image's own.
smoke_run() {
    local entry container
    mapfile -t entry < <(podman image inspect --format '{{join .Config.Entrypoint "\n"}}' "$image")
    container=$(buildah from --pull=never "$image")
    run 'training' buildah run --isolation chroot --env NP=$smoke_ranks "$container" -- \
        "${entry[@]}" $smoke_config >&2 || failed 'the smoke run failed'
    run 'reading the record' buildah run --isolation chroot "$container" -- wirebench show --latest ||
        failed 'the smoke run left no record'
    buildah rm "$container" >/dev/null
    done_in "$smoke_ranks processes trained $smoke_config in the image"
}

keep_store() {
    say "the store is kept. To use it: export CONTAINERS_STORAGE_CONF=$work/storage.conf; podman images"
    say "to remove it: rm -rf --one-file-system $work"
    work=''
}

without_docker() {
    check_tools
    trap clean_up EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    make_store
    make_base
    share_authorities
    share_pip_settings
    build
    if [ -n "$smoke" ]; then smoke_run; fi
    if [ -n "$keep" ]; then keep_store; fi
}

main() {
    smoke='' keep='' target='' volumes=()
    while [ $# -gt 0 ]; do
        case $1 in
            -h | --help) usage; return ;;
            --smoke) smoke=1 ;;
            --keep) keep=1 ;;
            cpu | gpu) [ -z "$target" ] || die 'name one target, cpu or gpu'; target=$1 ;;
            *) die "$1 is not one of: cpu, gpu, --smoke, --keep, --help" ;;
        esac
        shift
    done
    [ -n "$target" ] || { usage >&2; exit 2; }
    image=localhost/wirebench:$target base_image=localhost/base:$suite
    if docker_answers; then with_docker; else without_docker; fi
}

main "$@"; exit # on one line: an edit of this file while it runs does no harm
