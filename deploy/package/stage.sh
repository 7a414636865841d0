# Read by the scripts beside it, which are called with BINARY [FOLDER]: what they pack, and where.
# shellcheck shell=sh disable=SC2034  # used by those scripts
set -eu
umask 022
binary=$(realpath "$1")
folder=$(realpath "${2:-.}")
root=$(cd "$(dirname "$0")/../.." && pwd)
version=$("$binary" --version | cut -d ' ' -f 2)
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
