"""The CommitLog: its record, plain decoder and kernels, its files, and the search for its end."""
