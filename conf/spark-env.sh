#!/usr/bin/env bash
# Example of what spark-submit and pyspark need to know on every machine; copy into $SPARK_HOME/conf.

# The interpreter in which sparklog is installed. Spark looks the format up with it, and its tasks run in it.
# (The setting spark.pyspark.python is not enough: the look-up does not read it.)
export PYSPARK_PYTHON=/opt/sparklog/bin/python

# The same for the driver, unless it runs in another environment on purpose.
export PYSPARK_DRIVER_PYTHON="$PYSPARK_PYTHON"
