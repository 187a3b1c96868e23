#!/bin/sh
# Puts a Linux kernel that runs as a process (user-mode Linux) into the user's cache, for
# `make power-cut`: from Debian sid, because older ones do not boot on recent processors, with
# sid's C library beside it. It needs a Debian machine with root. Prints why where it cannot.
set -eu
target="${XDG_CACHE_HOME:-$HOME/.cache}/reput/uml"
[ ! -e "$target/linux" ] || exit 0
give_up() { echo "no user-mode Linux: $1" >&2; exit 0; }
[ "$(id -u)" = 0 ] || give_up "its tools are installed, and devices are made, by root alone"
command -v apt-get >/dev/null 2>&1 || give_up "this is no Debian machine"
[ "$(uname -m)" = x86_64 ] || give_up "it is built for x86_64 alone"
mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null |
  sed -nE 's/^(URIs:|deb( \[[^]]*\])?) +([^ ]*\/debian\/?)( .*)?$/\3/p' | head -n 1)
[ -n "$mirror" ] || give_up "apt's sources name no Debian mirror"
missing=""
for tool in patchelf:patchelf insmod:kmod dmsetup:dmsetup mkfs.ext4:e2fsprogs mkfs.xfs:xfsprogs; do
  PATH="$PATH:/usr/sbin:/sbin" command -v "${tool%%:*}" >/dev/null 2>&1 ||
    missing="$missing ${tool##*:}"
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/parts" "$work/lists/partial" "$work/cache/archives/partial" "$work/root"
cat >"$work/parts/sid.sources" <<END
Types: deb
URIs: $mirror
Suites: sid
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
END
cat >"$work/apt.conf" <<END
Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "$work/parts";
Dir::State::Lists "$work/lists";
Dir::Cache "$work/cache";
APT::Sandbox::User "root";
END
{
  { [ -z "$missing" ] || {
    apt-get update -qq &&
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
  }; } &&
  export APT_CONFIG="$work/apt.conf" &&
  apt-get update -qq &&
  (cd "$work" && apt-get download -qq user-mode-linux libc6)
} >"$work/log" 2>&1 || give_up "$(tail -n 1 "$work/log")"
for package in "$work"/*.deb; do dpkg -x "$package" "$work/root"; done
library=$(dirname "$(find "$work/root" -name libc.so.6 | head -n 1)")
mkdir -p "$target"
cp -a "$library" "$target/lib"
mkdir -p "$target/modules"
cp "$work"/root/usr/lib/uml/modules/*/kernel/drivers/md/*.ko "$target/modules"
cp "$work/root/usr/bin/linux.uml" "$work/linux"
patchelf --set-interpreter "$target/lib/ld-linux-x86-64.so.2" --set-rpath "$target/lib" \
  "$work/linux"
"$work/linux" --version >/dev/null 2>&1 || give_up "the kernel does not start on this machine"
mv "$work/linux" "$target/linux"
