"""The private parts of pyspark and py4j that a run uses, and the check that they are as expected.

They make a run start and run faster (decision 0022), and may change with any release. So a session
checks them before it opens; where one has changed, the run goes on with plain Spark
(``sources.plainspark``). Classes of Spark's JVM are looked for where they are used.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pkgutil import resolve_name
from typing import Any

import py4j.version
import pyspark.version

from reput.sources.plainspark import go_plain, is_plain
from reput.streaming.spark.jvm import PYSPARK_RELEASE

VERSIONS = {"pyspark": PYSPARK_RELEASE, "py4j": "0.10.9."}
"""Package -> how the version begins of the releases whose private parts are known."""
FUNCTIONS = {
    "pyspark.java_gateway:launch_gateway": "conf, popen_kwargs",
    "pyspark.java_gateway:ensure_callback_server_started": "gw",
    "pyspark.core.context:SparkContext._ensure_initialized": "instance, gateway, conf",
    "pyspark.sql.classic.dataframe:DataFrame._collect_as_arrow": (
        "self, split_batches, empty_list_if_zero_records, prefers_large_var_types"
    ),
    "pyspark.sql.udf:_create_udf": "f, returnType, evalType, name, deterministic",
    "pyspark.daemon:worker": "sock, authenticated",
    "pyspark.daemon:manager": "",
}
"""Function -> the names of its parameters."""
ATTRIBUTES = (
    "pyspark.core.context:SparkContext._gateway",
    "pyspark.core.context:SparkContext._jvm",
    "pyspark.core.context:SparkContext._active_spark_context",
    "pyspark.util:PythonEvalType.SQL_MAP_ARROW_ITER_UDF",
)
"""Attributes of classes."""
OF_INSTANCES = {
    "pyspark.java_gateway:launch_gateway": ("proc",),
    "pyspark.core.context:SparkContext._do_init": ("_accumulatorServer", "_jsc", "pythonExec"),
    "pyspark.sql.classic.dataframe:DataFrame.__init__": ("_jdf",),
    "pyspark.sql.classic.column:Column.__init__": ("_jc",),
    "pyspark.sql.streaming.query:StreamingQueryManager.__init__": ("_jsqm",),
    "pyspark.errors.exceptions.captured:CapturedException.__init__": ("_origin",),
}
"""Function -> attributes that it gives to its object."""


def check() -> None:
    """Go on with plain Spark where a private part is not as expected, and say which one."""
    if not is_plain() and (change := next(_changes(), None)) is not None:
        go_plain(change)


def _changes() -> Iterator[str]:
    """Yield what is not as expected, each with the version that has it."""
    versions = {"pyspark": pyspark.version.__version__, "py4j": py4j.version.__version__}
    for package, release in VERSIONS.items():
        if not versions[package].startswith(release):
            yield f"{package} {versions[package]} is not {release}*, whose private parts are known"
    has = f"pyspark {versions['pyspark']} has"
    for name, parameters in FUNCTIONS.items():
        function = _resolved(name)
        if function is None:
            yield f"{has} no {name}"
        elif ", ".join(inspect.signature(function).parameters) != parameters:
            yield f"{has} {name} with other parameters, {inspect.signature(function)}"
    missing = object()
    for name in ATTRIBUTES:
        if _resolved(name, missing) is missing:
            yield f"{has} no {name}"
    for method, names in OF_INSTANCES.items():
        code = getattr(_resolved(method), "__code__", None)
        for name in names:
            if code is None or name not in code.co_names:
                yield f"{has} no {name} by {method}"


def _resolved(name: str, missing: Any = None) -> Any:
    try:
        return resolve_name(name)
    except (ImportError, AttributeError):
        return missing
