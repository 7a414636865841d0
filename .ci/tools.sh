# shellcheck shell=bash
# What the scripts beside this one share.

# Compilers of C and C++, and a linker.
need_compilers() {
    if ! command -v cc >/dev/null 2>&1 || ! command -v c++ >/dev/null 2>&1; then
        apt_install gcc g++ libc6-dev
    fi
}

apt_install() {
    apt-get update -q && apt-get install -qy --no-install-recommends "$@"
}
