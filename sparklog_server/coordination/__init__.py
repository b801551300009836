"""A partition of an internal topic as an ordered state log: what coordinators of any kind stand on."""
