"""Oblivious transfer: a few from public keys (`base`), millions from those (`extension`), bits (`tools`)."""
