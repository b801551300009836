"""`python -m sparklog_server`."""

from sparklog_server.main import main

main()
