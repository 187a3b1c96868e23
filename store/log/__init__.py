"""The CommitLog: its record, plain decoder and kernels, its files, the search for its end."""
