"""Reports: figures and one self-contained HTML page from runs and benchmarks (read `build` first)."""
