"""The coordinator of transactions: who may do what in the name of a transactional id, and until when."""
