#!/bin/sh
# Puts prometheus and promtool, from Debian's package of Prometheus, into the user's cache, for the
# tests of the alerts. It installs no package and no service. Prints why where it cannot.
set -eu
target="${XDG_CACHE_HOME:-$HOME/.cache}/reput"
[ ! -e "$target/promtool" ] || [ ! -e "$target/prometheus" ] || exit 0
give_up() { echo "no prometheus: $1" >&2; exit 0; }
command -v apt-get >/dev/null 2>&1 || give_up "this is no Debian machine"
[ "$(id -u)" = 0 ] || give_up "lists of packages are read by root alone"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
{
  apt-get update -qq && cd "$work" && apt-get download -qq -o APT::Sandbox::User=root prometheus
} >"$work/log" 2>&1 || give_up "$(tail -n 1 "$work/log")"
dpkg -x "$work"/prometheus_*.deb "$work/root"
mkdir -p "$target"
mv "$work/root/usr/bin/promtool" "$work/root/usr/bin/prometheus" "$target"
