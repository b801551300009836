"""What a metadata log says, and what that makes of a root: pure values and functions, without files.

A kind of action is a slice, and all of it stands in one module: what it says (a struct), its rules
(why_illegal_...), what it does to an image (its effect), and how it is planned (plan_...). The modules, by
subject: topics, settings, extents (appended), rewriting (extents replaced, the log start advanced), writers,
brokers, producers, publishers. `actions` brings them together: one union, one table of effects. Beneath
them are the values that they share: image, draft, extent, extent_list, sequences, capacity, ids, topic_names.
"""
