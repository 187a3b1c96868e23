#!/bin/sh
# Installs a JDK (and Maven, if the argument is "maven") where they are missing and can be
# installed: on a Debian-like machine with root or password-less sudo. Otherwise prints what to do.
set -eu
wanted=""
java_ok() { "${JAVA_HOME:+$JAVA_HOME/bin/}java" -version >/dev/null 2>&1; }
java_ok || wanted="default-jdk-headless"
if [ "${1:-}" = maven ] && ! command -v mvn >/dev/null 2>&1; then wanted="$wanted maven"; fi
[ -n "$wanted" ] || exit 0
run=""
if [ "$(id -u)" != 0 ]; then
  if command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then run="sudo"; else run="no"; fi
fi
if [ "$run" = no ] || ! command -v apt-get >/dev/null 2>&1; then
  echo "missing:$wanted (not installed for want of rights or apt-get; install them, then go on)" >&2
  exit 0
fi
$run apt-get update -qq
# word splitting is wanted: several packages
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive $run apt-get install -y -qq --no-install-recommends $wanted
