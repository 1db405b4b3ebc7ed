"""Preparation without a dealer: the two servers make each other's correlations, by transfers and by encryption.

`stored` says what a kit keeps of every verb, `rounding` what each party does alone, `verbs` evaluates all draws of one
kind together, `cross` multiplies secrets (by transfers alone, or by ring-LWE), `model` puts kits together.
"""
