"""Each method's claims, and its speed beside the peer a user would pick instead.

``python -m benchmarks <slug> [--size small|full] [--check]``.
"""
