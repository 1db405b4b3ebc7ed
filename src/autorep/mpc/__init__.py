"""Two-party inference on secret shares: the engine.

Adversary: semi-honest, at most one of the two servers, any number of clients; the dealer colludes with nobody.
Reading order: `inventory` (what is sent and consumed), `linear`, `activation`, `compare_dcf`, `dealer`, `party`.
"""
