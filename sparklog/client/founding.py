"""What the first commit of a root says besides, whoever makes it: that records go by themselves.

A root that was made before brokers and streams removed records says nothing of it, and keeps them until its
owner agrees (docs/adr/0023).
Not here: who asks for it (sparklog/maintenance/steps.py).
"""

from sparklog.log.config import AUTOMATIC_REMOVAL_KEY
from sparklog.metadata import SetConfigs

FOUNDING = (SetConfigs(configs={AUTOMATIC_REMOVAL_KEY: "true"}),)
