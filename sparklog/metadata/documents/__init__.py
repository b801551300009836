"""The files of a metadata log, byte for byte: documents, snapshots, meta.properties, and all their names.

Not here: what they mean to a root (model/), and who writes them when (the modules above this folder).
"""
