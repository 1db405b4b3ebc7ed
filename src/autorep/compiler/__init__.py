"""From a trained module to a Program: trace, translate, fold, calibrate, choose widths."""
