#!/bin/sh
# Checks what pip cannot install: Python >= 3.11 and (with --java) a full Java >= 17.
#
# Prints the interpreter to use on stdout. When something is missing it says what, and how to
# install it, in one line on stderr, and exits with 1. Every candidate is run, not just looked up:
# version managers leave commands on the PATH that only print an error.
#
# usage: scripts/preflight.sh [--java]      PYTHON and JAVA_HOME are honoured.
set -u

python_works() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 </dev/null
}

# The first is what constraints.txt was tested with.
for candidate in "${PYTHON:-}" python3.11 python3.12 python3.13 python3; do
    if [ -n "$candidate" ] && python_works "$candidate"; then
        found=$("$candidate" -c 'import sys; print(sys.executable)')
        break
    fi
    if [ -n "$candidate" ] && [ "$candidate" = "${PYTHON:-}" ]; then
        echo "PYTHON=$candidate does not run, is older than 3.11, or lacks venv: point PYTHON to a Python >= 3.11, or unset it." >&2
        exit 1
    fi
done
if [ -z "${found:-}" ]; then
    echo "Python 3.11 or newer (with venv) is missing: install it with 'sudo apt-get install python3.11 python3.11-venv' (Debian, Ubuntu), 'brew install python@3.11' (macOS) or 'pyenv install 3.11', or set PYTHON=/path/to/python3." >&2
    exit 1
fi

if [ "${1:-}" = "--java" ]; then
    # Spark's launcher prefers JAVA_HOME to the PATH; so do we. PySpark 4.3 starts its JVM with
    # this module, which some reduced runtimes leave out.
    java=java
    [ -n "${JAVA_HOME:-}" ] && java="$JAVA_HOME/bin/java"
    advice="install it with 'sudo apt-get install openjdk-17-jdk-headless' (Debian, Ubuntu), 'sudo dnf install java-17-openjdk-devel' (Fedora) or 'brew install openjdk@17' (macOS), or set JAVA_HOME to one."
    version=$("$java" -version 2>&1 </dev/null | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
    if [ -z "$version" ]; then
        echo "Java 17 or newer is missing (tried to run '$java'): $advice" >&2
        exit 1
    fi
    if [ "$version" -lt 17 ]; then
        echo "Java 17 or newer is missing ('$java' is Java $version): $advice" >&2
        exit 1
    fi
    if ! "$java" --add-modules jdk.incubator.vector -version >/dev/null 2>&1 </dev/null; then
        echo "A full Java 17 is missing ('$java' is Java $version without the module jdk.incubator.vector): $advice" >&2
        exit 1
    fi
fi
echo "$found"
