"""From a broker's directory to a chart of messages per minute by topic: STORE PICTURE."""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

log = SparkSession.builder.getOrCreate().read.format("rocketmq-commitlog")
messages = log.option("includeBody", False).load(sys.argv[1]).where("topic is not null")
minute = f.date_trunc("minute", "storeTimestamp").alias("minute")
table = messages.groupBy(minute).pivot("topic").count().orderBy("minute").toPandas().fillna(0)
chart = table.plot.area("minute", xlabel="", ylabel="messages a minute", figsize=(8, 3))
chart.figure.savefig(sys.argv[2])
