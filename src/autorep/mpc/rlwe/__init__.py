"""Ring-LWE encryption: parameters and keys, packing of linear layers (pure counting), the layers, products in slots."""
