"""What the first commit of a root says besides, whoever makes it: that records go by themselves, and that
metadata documents of all versions that we know may be written.

A root that was made before says nothing of it: it keeps its records, and stays readable for the sparklog that
made it, until its owner agrees (docs/adr/0023, 0024).
Not here: who asks for it (sparklog/maintenance/steps.py).
"""

from sparklog.log.root_config import AUTOMATIC_REMOVAL_KEY
from sparklog.metadata import METADATA_VERSION_KEY, VERSION, SetConfigs

FOUNDING = (SetConfigs(configs={AUTOMATIC_REMOVAL_KEY: "true", METADATA_VERSION_KEY: str(VERSION)}),)
