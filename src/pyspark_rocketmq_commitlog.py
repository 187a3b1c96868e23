"""Found by Spark: ``format("rocketmq-commitlog")`` without registration.

Spark imports every top-level module that is named ``pyspark_*``, and takes ``DefaultSource`` from
it; a module that raises would break every other source too.
"""

try:
    from reput.sources.commitlog import CommitLogDataSource as DefaultSource
except ImportError as error:
    import warnings

    warnings.warn(f"rocketmq-commitlog is not there: {error}", stacklevel=1)

__all__ = ["DefaultSource"]
