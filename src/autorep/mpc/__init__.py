"""Two-party inference on secret shares: the engine.

Adversary: semi-honest, at most one of the two servers, any number of clients; the dealer colludes with nobody.
Reading order: `party`, `operations` (one file each), `compare_dcf`, `verbs` (what randomness they ask for), `dealt` and
`blinding` (how a dealer provides it), `inventory` (what one query sends and consumes).
"""
