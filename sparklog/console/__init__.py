"""The web console: what is in a root, as pages and as JSON. It changes nothing.

Imported only by those who serve it (sparklog/cli/console.py, a broker): it needs the extra [console].
"""
