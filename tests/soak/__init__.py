"""A soak: a live log, a run of the whole command that follows it, and a fault every ten seconds.

``python -m tests.soak`` (``make soak``) goes on for hours; at its end everything is what a
fault-free build and plain models make of the same log. Each line of its report is on the disk when
it is printed, so that a soak that is cut short still counts.
"""
