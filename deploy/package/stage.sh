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

# What belongs below PREFIX/share beside the program: manual pages, completions where each shell looks for
# those of packages, pages and recipes. A page's links to code lead nowhere there.
stage_share() {
    share=$1/share
    "$binary" man --to "$share/man/man1" >/dev/null
    gzip -9n "$share"/man/man1/*.1
    install -d "$share/bash-completion/completions" "$share/zsh/$2" "$share/fish/vendor_completions.d"
    "$binary" completions bash >"$share/bash-completion/completions/zbelastic"
    "$binary" completions zsh >"$share/zsh/$2/_zbelastic"
    "$binary" completions fish >"$share/fish/vendor_completions.d/zbelastic.fish"
    install -d "$share/doc/zbelastic/examples"
    cp -R "$root/docs/." "$root/README.md" "$root/LICENSE" "$share/doc/zbelastic"
    cp -R "$root/deploy/." "$share/doc/zbelastic/examples"
}
