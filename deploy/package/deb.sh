#!/bin/sh
# A Debian package of a binary, with the units of deploy/systemd and their user.
#
#   deploy/package/deb.sh target/release/zbelastic [FOLDER]
# shellcheck source-path=SCRIPTDIR source=stage.sh
. "$(dirname "$0")/stage.sh"
machine=$(dpkg --print-architecture)
chmod 0755 "$stage"

install -D -m 0755 "$binary" "$stage/usr/bin/zbelastic"
for unit in controller worker; do
    install -D -m 0644 "$root/deploy/systemd/zbelastic-$unit.service" \
        "$stage/lib/systemd/system/zbelastic-$unit.service"
done
install -D -m 0644 "$root/deploy/systemd/zbelastic.sysusers" "$stage/usr/lib/sysusers.d/zbelastic.conf"
stage_share "$stage/usr" vendor-completions
mv "$stage/usr/share/doc/zbelastic/LICENSE" "$stage/usr/share/doc/zbelastic/copyright"
gzip -9n <"$root/CHANGELOG.md" >"$stage/usr/share/doc/zbelastic/changelog.gz"

# The oldest C library that has what the binary uses.
libc=$(objdump -T "$binary" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
install -d "$stage/DEBIAN"
cat >"$stage/DEBIAN/control" <<CONTROL
Package: zbelastic
Version: $version
Architecture: $machine
Maintainer: zbelastic <zbelastic@localhost>
Installed-Size: $(du -ks "$stage" | cut -f 1)
Depends: libc6 (>= ${libc#GLIBC_}), libgcc-s1
Section: science
Priority: optional
Description: trainer for language models on machines that come and go
 Trains transformers in a pipeline of workers. Workers may be killed at any
 time: the others go on, and the weights come out identical, bit for bit.
CONTROL
cat >"$stage/DEBIAN/postinst" <<'SCRIPT'
#!/bin/sh
set -e
if [ "$1" = configure ]; then
    if [ -d /run/systemd/system ]; then
        systemd-sysusers zbelastic.conf
        systemctl daemon-reload
    elif ! getent passwd zbelastic >/dev/null; then
        useradd --system --user-group --home-dir /var/lib/zbelastic --shell /usr/sbin/nologin zbelastic
    fi
    install -d -o root -g zbelastic -m 0750 /etc/zbelastic
fi
SCRIPT
cat >"$stage/DEBIAN/prerm" <<'SCRIPT'
#!/bin/sh
set -e
# A new version starts with the next `systemctl restart`, one node after the other.
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl disable --now zbelastic-worker zbelastic-controller || true
fi
SCRIPT
chmod 0755 "$stage/DEBIAN/postinst" "$stage/DEBIAN/prerm"
dpkg-deb --root-owner-group -Zgzip -z6 -b "$stage" "$folder/zbelastic_${version}_$machine.deb" >&2
echo "$folder/zbelastic_${version}_$machine.deb"
