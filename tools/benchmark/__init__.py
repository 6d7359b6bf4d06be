"""The parts of `tools/bench.py`: made-up data, the stores, what is asked of them, and how it is shown."""
