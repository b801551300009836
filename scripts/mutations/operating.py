"""What who runs a broker sees of it: its log files, its metrics, its answers to administrators."""

from scripts.mutations.mutant import Mutant

LOG_FILES, OF_LOG_FILES = "sparklog_server/runtime/log_files.py", "tests/server/runtime/test_log_files.py"

MUTANTS = (
    Mutant(
        "log files: what clients call themselves begins no line",
        LOG_FILES,
        "_brief(record.message).translate(_CONTROLS)",
        "_brief(record.message)",
        OF_LOG_FILES,
    ),
    Mutant(
        "log files: nor does it in a traceback",
        LOG_FILES,
        'f"  {line.translate(_CONTROLS)}"',
        'f"{line}"',
        OF_LOG_FILES,
    ),
    Mutant(
        "log files: a traceback has an end",
        LOG_FILES,
        "    if len(text) <= _LONGEST_TRACEBACK:\n",
        "    if True:\n",
        OF_LOG_FILES,
    ),
    Mutant(
        "running: a fault of ours is in the log, and its exit waits for nobody",
        "sparklog_server/running.py",
        "    except Exception:  # noqa: BLE001 - a fault of ours: its",
        "    except ZeroDivisionError:  # noqa: BLE001 - a fault of ours: its",
        "tests/server/test_running.py",
    ),
    Mutant(
        "running: who is stopped while it waits to start has not failed",
        "sparklog_server/running.py",
        "            if broker.lifecycle.has_failed or not broker.lifecycle.is_stop_requested:\n",
        "            if True:\n",
        "tests/server/test_running.py",
    ),
    Mutant(
        "log files: a day is not replaced by nothing",
        LOG_FILES,
        "        if path.exists():\n",
        "        if True:\n",
        OF_LOG_FILES,
    ),
    Mutant(
        "log files: a line has an end",
        LOG_FILES,
        "    if len(message) <= _LONGEST:\n",
        "    if True:\n",
        OF_LOG_FILES,
    ),
    Mutant(
        "log files: clients cannot fill the disk",
        LOG_FILES,
        '    handlers["server"].addFilter(Throttle(SystemClock()))\n',
        "",
        OF_LOG_FILES,
    ),
    Mutant(
        "log files: what libraries say is in the log",
        LOG_FILES,
        "    for name in _LIBRARIES:\n        _direct(",
        "    for name in _LIBRARIES:\n        print(",
        OF_LOG_FILES,
    ),
    Mutant(
        "log files: deleting records leaves one line for a request",
        "sparklog_server/api/delete_records.py",
        "    if refused:  #",
        "    for _ in refused:  #",
        "tests/server/api/test_delete_records.py",
    ),
    Mutant(
        "administrators are answered whatever is misspelt, at whatever length",
        "sparklog_server/admin/changes.py",
        "message if len(message) <= LONGEST_MESSAGE else",
        "message if True else",
        "tests/server/api/test_long_names.py",
    ),
    Mutant(
        "metrics: who reads slowly is told all",
        "sparklog_server/http/scrapes.py",
        '"body": text, "more_body": True})\n    await send({"type": "http.response.body"})',
        '"body": text})',
        "tests/server/http/test_scrapes.py",
    ),
    Mutant(
        "metrics: those who wait for them are few",
        "sparklog_server/http/scrapes.py",
        "        if self._count >= MAX_SCRAPES:\n",
        "        if False:\n",
        "tests/server/http/test_scrapes.py",
    ),
    Mutant(
        "metrics: who takes nothing is let go",
        "sparklog_server/http/connections.py",
        " or self.loop.time() >= self._answered_by",
        "",
        "tests/server/http/test_scrapes.py",
    ),
    Mutant(
        "a log file that may not be renamed is written on",
        LOG_FILES,
        "            except OSError as error:\n                self._say(",
        "            except ZeroDivisionError as error:\n                self._say(",
        OF_LOG_FILES,
    ),
    Mutant(
        "a port is one broker's also where connections of another are left",
        "sparklog_server/network/listener.py",
        "    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)\n",
        "",
        "tests/server/network/test_listener.py",
    ),
)
