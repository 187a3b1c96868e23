"""The kernel that groups the records of a chunk by run, for the columns of ``PackedChunk``."""

from __future__ import annotations

import numpy as np

from reput.store.log.kernelbase import kernel, put32, put64
from reput.store.queue.consumequeue import CQ_STORE_UNIT_SIZE, SIZE_IN_UNIT, TAGS_CODE_IN_UNIT
from reput.store.runs.scankernel import RUN_CONTIGUOUS, RUN_COUNT


@kernel
def _run_starts(runs, starts):
    """``starts[r]`` becomes the index of run r's first record in the order in which records are
    grouped by run; returns whether all runs are contiguous."""
    start, contiguous = np.int64(0), True
    for run in range(len(runs)):
        starts[run] = start
        start += runs[run, RUN_COUNT]
        contiguous &= runs[run, RUN_CONTIGUOUS] == 1
    return contiguous


@kernel
def pack_units(count, offsets, sizes, tags, queue_offsets, run_ids, runs, cursors, units, grouped):
    """Group records by run: 20-byte consume queue units into ``units``, queue offsets into
    ``grouped``. Return the number of these that are needed: none where all runs are contiguous.

    ``cursors`` has room for a number for each run.
    """
    contiguous = _run_starts(runs, cursors)
    for index in range(count):
        run = run_ids[index]
        at = cursors[run]
        cursors[run] = at + 1
        pos = at * CQ_STORE_UNIT_SIZE
        put64(units, pos, offsets[index])
        put32(units, pos + SIZE_IN_UNIT, np.int64(sizes[index]))
        put64(units, pos + TAGS_CODE_IN_UNIT, tags[index])
        if not contiguous:
            grouped[at] = queue_offsets[index]
    return 0 if contiguous else count


@kernel
def group_order(count, run_ids, runs, cursors, order):
    """``order[i]`` becomes the record at index i of the grouped order; ``cursors`` as above."""
    _run_starts(runs, cursors)
    for index in range(count):
        run = run_ids[index]
        order[cursors[run]] = index
        cursors[run] += 1
