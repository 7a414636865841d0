#!/bin/sh
# A tarball of a binary: zbelastic-VERSION-MACHINE-linux.tar.gz with bin/ and share/, for /usr/local.
#
#   deploy/package/tarball.sh target/release/zbelastic [FOLDER]
# shellcheck source-path=SCRIPTDIR source=stage.sh
. "$(dirname "$0")/stage.sh"
name=zbelastic-$version-$(uname -m)-linux

install -D -m 0755 "$binary" "$stage/$name/bin/zbelastic"
stage_share "$stage/$name" site-functions
cp "$root/CHANGELOG.md" "$stage/$name/share/doc/zbelastic"

# The same binary and sources give the same bytes.
tar -C "$stage" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@${SOURCE_DATE_EPOCH:-0}" \
    -cf - "$name" | gzip -n >"$folder/$name.tar.gz"
echo "$folder/$name.tar.gz"
