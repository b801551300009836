#!/usr/bin/env bash
# Example of what spark-submit and pyspark need to know on every machine; copy into $SPARK_HOME/conf.

# The interpreter in which sparklog is installed. Spark looks the format up with it, and its tasks run in it.
# (sparklog-python is that environment's python, and lets Spark's workers start faster.)
# (The setting spark.pyspark.python is not enough: the look-up does not read it.)
export PYSPARK_PYTHON=/opt/sparklog/bin/sparklog-python

# The same for the driver, unless it runs in another environment on purpose: Spark looks the format up with this
# one, and then runs the source of each streaming query in it.
export PYSPARK_DRIVER_PYTHON=/opt/sparklog/bin/sparklog-python

# Spark talks to its Python workers by Unix sockets: TCP costs each task 40 ms. In spark-defaults.conf:
#     spark.python.unix.domain.socket.enabled  true
#     spark.python.unix.domain.socket.dir      /tmp
# (Where others share the machine: only with a umask of 022 or stricter, since sockets know no secret.)
# Checkpoints on a local disk without Hadoop's checksum files, which cost a micro-batch 65 ms and more (ADR 0011):
#     spark.hadoop.fs.AbstractFileSystem.file.impl  org.apache.hadoop.fs.local.RawLocalFs

# For s3:// roots, unless the machine has a role or ~/.aws: each executor looks here for what a query's options
# do not say (docs/s3.md).
# export AWS_PROFILE=sparklog
# export AWS_ENDPOINT_URL=http://127.0.0.1:8333        # a store other than AWS
# export SPARKLOG_CACHE_DIR=/var/tmp/sparklog-cache    # indexes, memory-mapped; at most 256 MiB
