#!/bin/sh
# The first process of the guest. Its root is the host's file system, read-only; the kernel's
# command line gives it PYTHON, REPOSITORY, KERNEL_MODULES and JOB.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev 2>/dev/null
mount -t tmpfs tmpfs /mnt
mount -t tmpfs tmpfs /run
# compiled code is executed only from a cache that can be written to
mkdir -p /run/cache/reput
mount -t hostfs none /run/cache/reput -o "$CACHE"
for module in dm-mod dm-bufio dm-flakey dm-log-writes dm-snapshot; do
  insmod "$KERNEL_MODULES/$module.ko" || echo "insmod $module failed"
done
cd "$REPOSITORY" || exit 1
PYTHONDONTWRITEBYTECODE=1 TMPDIR=/run XDG_CACHE_HOME=/run/cache \
  "$PYTHON" -m tests.crash.powercut.guest "$JOB"
echo "guest ended: $?"
echo o >/proc/sysrq-trigger
sleep 60
