"""Draws messages per minute by topic from a broker's directory. Arguments: STORE PICTURE."""

import sys

import pandas
from matplotlib import dates, pyplot
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

spark = SparkSession.builder.getOrCreate()
log = spark.read.format("rocketmq-commitlog").option("includeBody", False)
messages = log.load(sys.argv[1]).where("topic is not null")
minute = f.date_trunc("minute", "storeTimestamp").alias("minute")
table = messages.groupBy(minute).pivot("topic").count().orderBy("minute").toPandas().fillna(0)

pyplot.rcParams["svg.fonttype"] = "none"  # the reader's fonts: they have names in any script
chart, axes = pyplot.subplots(figsize=(8, 3), layout="constrained")
width, below = pandas.Timedelta(minutes=1), 0
for topic in table.columns.drop("minute"):
    axes.bar(table["minute"], table[topic], width, below, align="edge", label=topic)
    below = below + table[topic]
axes.set_xlim(table["minute"].min(), table["minute"].max() + width)
axes.set(xlabel=spark.conf.get("spark.sql.session.timeZone"), ylabel="messages a minute")
axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(axes.xaxis.get_major_locator()))
chart.legend(loc="outside right upper", fontsize="small")
chart.savefig(sys.argv[2])
