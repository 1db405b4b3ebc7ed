"""The Program between training and cryptography: what it is (`ir`), its files, and how it runs in the clear."""
