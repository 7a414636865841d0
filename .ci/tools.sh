# shellcheck shell=bash
# What the scripts beside this one share.

apt_install() {
    apt-get update -q && apt-get install -qy --no-install-recommends "$@"
}
