#!/usr/bin/env bash
# Example of the environment of spark-submit and pyspark, on every machine; copy into $SPARK_HOME/conf.

# The interpreter in which sparklog is installed. Spark looks the format up with it, and its tasks run in it.
# sparklog-python is that environment's python; Spark's workers start faster with it.
# The setting spark.pyspark.python is not enough: the look-up does not read it.
export PYSPARK_PYTHON=/opt/sparklog/bin/sparklog-python

# The same for the driver, unless it needs another environment. Spark looks the format up with this interpreter,
# and runs the source of each streaming query in it.
export PYSPARK_DRIVER_PYTHON=/opt/sparklog/bin/sparklog-python

# Unix sockets between Spark and its Python workers: TCP costs each task 40 ms. In spark-defaults.conf:
#     spark.python.unix.domain.socket.enabled  true
#     spark.python.unix.domain.socket.dir      /tmp
# If others share the machine: only with a umask of 022 or stricter, since sockets check no secret.
# Checkpoints on a local disk without Hadoop's checksum files, which cost a micro-batch 65 ms and more (ADR 0011):
#     spark.hadoop.fs.AbstractFileSystem.file.impl  org.apache.hadoop.fs.local.RawLocalFs

# For s3:// roots, unless the machine has a role or ~/.aws: each executor reads here what a query's options
# do not contain (docs/s3.md).
# export AWS_PROFILE=sparklog
# export AWS_ENDPOINT_URL=http://127.0.0.1:8333        # a store other than AWS
# export SPARKLOG_CACHE_DIR=/var/tmp/sparklog-cache    # indexes, memory-mapped; at most 256 MiB
