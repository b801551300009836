"""Clusters of many processes: `make test-clusters`, never part of `make test`. Each takes minutes."""

import os

if os.environ.get("SPARKLOG_CLUSTERS") != "1":
    collect_ignore_glob = ["test_*.py"]
