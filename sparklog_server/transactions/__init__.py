"""The coordinator of transactions: what a producer may do with a transactional id, and until when."""
