"""Power cuts and failing disks on a real kernel: user-mode Linux with ext4 or XFS on a device
that stops writing.

``machine`` boots the kernel and runs ``guest`` in it; ``device`` is the guest's disk,
``writelog`` what dm-log-writes noted, ``workload`` what is cut short.
"""
